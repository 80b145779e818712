// The rows of cross_entropy, its gradient and the log-sum-exp alone.
#include "kernels/common/parts.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/loss/cross_entropy.h"

namespace octet::cuda {
namespace {

CrossEntropy describe(const Graph& graph, const Node& node) {
  const Shape& shape = graph.shape(node.inputs[0]);
  const ClassPart classes(node, shape[1]);
  return {.dtype = graph.dtype(node.inputs[0]),
          .tokens = shape[0],
          .cols = shape[1],
          .classes = classes.count,
          .first = static_cast<int32_t>(classes.first)};
}

BoundKernel bind(DeviceContext&, const Graph& graph, const Node& node) {
  return [call = describe(graph, node)](const KernelArgs& args) mutable {
    call.logits = args.in[0].data, call.targets = args.in[1].as<int32_t>();
    const float* given = args.in.size() > 2 ? args.in[2].as<const float>() : nullptr;
    launch_cross_entropy(call, given, args.out[0].as<float>(), args.out[1].as<float>(), args.stream);
  };
}

BoundKernel bind_grad(DeviceContext&, const Graph& graph, const Node& node) {
  return [call = describe(graph, node)](const KernelArgs& args) mutable {
    call.logits = args.in[0].data, call.targets = args.in[1].as<int32_t>();
    launch_cross_entropy_grad(call, args.in[2].as<float>(), args.in[3].as<float>(), args.out[0].data, args.stream);
  };
}

BoundKernel bind_lse(DeviceContext&, const Graph& graph, const Node& node) {
  return [call = describe(graph, node)](const KernelArgs& args) mutable {
    call.logits = args.in[0].data;
    launch_cross_entropy(call, nullptr, nullptr, args.out[0].as<float>(), args.stream);
  };
}

constexpr KernelEntry kKernels[] = {
    {Op::kCrossEntropy, "cross_entropy_rows", bind_if<first_is_f32_or_bf16, bind>},
    {Op::kCrossEntropyGrad, "cross_entropy_grad_rows", bind_if<first_is_f32_or_bf16, bind_grad>},
    {Op::kRowLse, "row_lse_rows", bind_if<first_is_f32_or_bf16, bind_lse>}};

}  // namespace

std::span<const KernelEntry> loss_kernels() { return kKernels; }

}  // namespace octet::cuda
