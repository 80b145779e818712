// Rows of the elementwise ops.
#include "kernels/common/keep_rule.h"
#include "kernels/common/parts.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"

namespace octet::cuda {
namespace {

// Every input and the result are of one type, float32 or bf16.
bool is_one_type(const Graph& graph, const Node& node) {
  const DType dtype = node.results[0].dtype;
  for (Value input : node.inputs) {
    if (graph.dtype(input) != dtype) return false;
  }
  return is_f32_or_bf16(dtype);
}

BoundKernel bind_cast(DeviceContext&, const Graph& graph, const Node& node) {
  const DType from = graph.dtype(node.inputs[0]), to = node.results[0].dtype;
  const auto known = [](DType dtype) { return is_float(dtype) && dtype != DType::kF64; };
  if (!known(from) || !known(to)) return {};
  return [from, to](const KernelArgs& args) {
    launch_cast(from, args.in[0].data, to, args.out[0].data, args.out[0].elements(), args.stream);
  };
}

BoundKernel bind_scale(DeviceContext&, const Graph&, const Node& node) {
  const auto factor = static_cast<float>(node.attrs.get<double>("value"));
  return [factor](const KernelArgs& args) {
    launch_scale(args.out[0].dtype(), args.in[0].data, args.out[0].data, args.out[0].elements(), factor, args.stream);
  };
}

BoundKernel bind_tanh(DeviceContext&, const Graph&, const Node&) {
  return [](const KernelArgs& args) {
    launch_tanh(args.out[0].dtype(), args.in[0].data, args.out[0].data, args.out[0].elements(), args.stream);
  };
}

BoundKernel bind_activation(DeviceContext&, const Graph&, const Node& node) {
  return [fn = activation_of(node)](const KernelArgs& args) {
    launch_activation(fn, args.out[0].dtype(), args.in[0].data, args.out[0].data, args.out[0].elements(), args.stream);
  };
}

BoundKernel bind_activation_grad(DeviceContext&, const Graph&, const Node& node) {
  return [fn = activation_of(node)](const KernelArgs& args) {
    launch_activation_grad(fn, args.out[0].dtype(), args.in[0].data, args.in[1].data, args.out[0].data,
                           args.out[0].elements(), args.stream);
  };
}

bool are_f32_or_bf16(const Graph& graph, const Node& node) {
  return is_f32_or_bf16(graph.dtype(node.inputs[0])) && is_f32_or_bf16(graph.dtype(node.inputs[1]));
}

BoundKernel bind_binary(DeviceContext&, const Graph& graph, const Node& node) {
  const Binary op = node.op == Op::kAdd   ? Binary::kAdd
                    : node.op == Op::kSub ? Binary::kSub
                    : node.op == Op::kMul ? Binary::kMul
                                          : Binary::kMaximum;
  const Shape &a = graph.shape(node.inputs[0]), &b = graph.shape(node.inputs[1]);
  const Broadcast broadcast = a.elements() == b.elements() ? Broadcast::kNone
                              : b.elements() == 1          ? Broadcast::kOne
                                                           : Broadcast::kRow;
  return [op, broadcast](const KernelArgs& args) {
    const Tensor &left = args.in[0], &right = args.in[1];
    launch_binary(op, broadcast, left.dtype(), left.data, right.dtype(), right.data, args.out[0].data, left.elements(),
                  left.shape().cols(), args.stream);
  };
}

BoundKernel bind_dropout(DeviceContext&, const Graph&, const Node& node) {
  const double p = node.attrs.get<double>("p");
  const int64_t cols = node.results[0].shape.cols();
  const MatrixPart part(node, cols);
  const KeepRule rule(node, p);
  const DropoutSite site{.key = static_cast<uint32_t>(node.attrs.get<int64_t>("key")),
                         .threshold = rule.threshold,
                         .factor = static_cast<float>(rule.factor),
                         .bytes = rule.bytes,
                         .is_part = node.attrs.has("origin"),
                         .first = part.first,
                         .cols = cols,
                         .stride = part.stride};
  return [site](const KernelArgs& args) {
    launch_dropout(site, args.out[0].dtype(), args.in[0].data, args.in[1].as<int64_t>(), args.out[0].data,
                   args.out[0].elements(), args.stream);
  };
}

BoundKernel bind_constant(DeviceContext&, const Graph&, const Node& node) {
  const DType dtype = node.results[0].dtype;
  const int64_t size = dtype_bytes(dtype);
  uint64_t pattern = 0;  // the element, repeated to 8 bytes
  for (int64_t i = 0; i < 8 / size; ++i) store_element(dtype, &pattern, i, node.attrs.get<double>("value"));
  return [pattern](const KernelArgs& args) {
    launch_fill(pattern, args.out[0].data, args.out[0].type->bytes(), args.stream);
  };
}

constexpr KernelEntry kKernels[] = {
    {Op::kCast, "cast", bind_cast},
    {Op::kScale, "scale", bind_if<is_one_type, bind_scale>},
    {Op::kGelu, "gelu", bind_if<is_one_type, bind_activation>},
    {Op::kGeluGrad, "gelu_grad", bind_if<is_one_type, bind_activation_grad>},
    {Op::kSilu, "silu", bind_if<is_one_type, bind_activation>},
    {Op::kSiluGrad, "silu_grad", bind_if<is_one_type, bind_activation_grad>},
    {Op::kRelu, "relu", bind_if<is_one_type, bind_activation>},
    {Op::kReluGrad, "relu_grad", bind_if<is_one_type, bind_activation_grad>},
    {Op::kTanh, "tanh", bind_if<is_one_type, bind_tanh>},
    {Op::kAdd, "add", bind_if<are_f32_or_bf16, bind_binary>},
    {Op::kSub, "sub", bind_if<are_f32_or_bf16, bind_binary>},
    {Op::kMul, "mul", bind_if<are_f32_or_bf16, bind_binary>},
    {Op::kMaximum, "maximum", bind_if<are_f32_or_bf16, bind_binary>},
    {Op::kDropout, "dropout", bind_if<first_is_f32_or_bf16, bind_dropout>},
    {Op::kConstant, "constant", bind_constant},
};

}  // namespace

std::span<const KernelEntry> elementwise_kernels() { return kKernels; }

}  // namespace octet::cuda
