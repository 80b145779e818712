// Rows of the ops that move elements, and of reductions.
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/shape/shape.h"

namespace octet::cuda {
namespace {

const std::byte* bytes(const Tensor& tensor) { return tensor.as<std::byte>(); }

// A tensor seen as [outer, axis, inner bytes].
struct Outer {
  int64_t outer = 1, axis = 1, inner_bytes = 1;
  Outer(const TensorType& type, int64_t at) : inner_bytes(dtype_bytes(type.dtype)) {
    for (int i = 0; i < type.shape.rank(); ++i) (i < at ? outer : i == at ? axis : inner_bytes) *= type.shape[i];
  }
};

BoundKernel bind_reshape(DeviceContext&, const Graph&, const Node&) {
  return [](const KernelArgs& args) { copy_tensor(args.in[0], args.out[0], args.stream); };
}

BoundKernel bind_slice(DeviceContext&, const Graph& graph, const Node& node) {
  const Outer from(graph.type(node.inputs[0]), node.attrs.get<int64_t>("axis"));
  const int64_t begin = node.attrs.get<int64_t>("begin"), end = node.attrs.get<int64_t>("end");
  return [=](const KernelArgs& args) {
    const int64_t width = (end - begin) * from.inner_bytes;
    launch_copy_block(bytes(args.in[0]) + begin * from.inner_bytes, from.axis * from.inner_bytes, args.out[0].data,
                      width, from.outer, width, args.stream);
  };
}

BoundKernel bind_concat(DeviceContext&, const Graph& graph, const Node& node) {
  const int64_t axis = node.attrs.get<int64_t>("axis");
  const Outer to(node.results[0], axis);
  std::vector<int64_t> widths;
  for (Value part : node.inputs) {
    const Outer from(graph.type(part), axis);
    widths.push_back(from.axis * from.inner_bytes);
  }
  return [to, widths](const KernelArgs& args) {
    std::byte* target = args.out[0].as<std::byte>();
    for (size_t i = 0; i < widths.size(); ++i) {
      launch_copy_block(args.in[i].data, widths[i], target, to.axis * to.inner_bytes, to.outer, widths[i], args.stream);
      target += widths[i];
    }
  };
}

BoundKernel bind_transpose(DeviceContext&, const Graph&, const Node& node) {
  const int64_t size = dtype_bytes(node.results[0].dtype);
  return [size](const KernelArgs& args) {
    const Shape& shape = args.in[0].shape();
    launch_transpose(args.in[0].data, args.out[0].data, shape[0], shape[1], size, args.stream);
  };
}

BoundKernel bind_select_rows(DeviceContext&, const Graph&, const Node&) {
  return [](const KernelArgs& args) {
    const Tensor& x = args.in[0];
    launch_select_rows(x.data, x.shape()[0], args.in[1].as<int32_t>(), args.out[0].data, args.in[1].elements(),
                       x.shape()[1] * dtype_bytes(x.dtype()), args.stream);
  };
}

BoundKernel bind_segment_mean(DeviceContext&, const Graph&, const Node&) {
  return [](const KernelArgs& args) {
    const Tensor& x = args.in[0];
    launch_segment_mean(x.dtype(), x.data, x.shape().rows(), x.shape().cols(), args.in[1].as<int32_t>(),
                        args.in[1].elements() - 1, args.out[0].as<float>(), args.stream);
  };
}

Reduction reduction_of(const Node& node) {
  const std::string& kind = node.attrs.get<std::string>("reduction");
  return kind == "sum" ? Reduction::kSum : kind == "max" ? Reduction::kMax : Reduction::kAmax;
}

BoundKernel bind_reduce(DeviceContext& context, const Graph& graph, const Node& node) {
  const bool all = node.attrs.get<std::string>("axis") == "all";
  const Shape& shape = graph.shape(node.inputs[0]);
  const int64_t scratch = all ? reduce_all_scratch(shape.elements()) : reduce_rows_scratch(shape.rows(), shape.cols());
  const auto run = [all, kind = reduction_of(node), counters = context.counters()](const KernelArgs& args) {
    const Tensor& x = args.in[0];
    float *y = args.out[0].as<float>(), *scratch = reinterpret_cast<float*>(args.workspace.data());
    if (all) {
      launch_reduce_all(kind, x.dtype(), x.data, y, x.elements(), scratch, counters, args.stream);
    } else {
      launch_reduce_rows(kind, x.dtype(), x.data, y, x.shape().rows(), x.shape().cols(), scratch, counters,
                         args.stream);
    }
  };
  return {run, scratch};
}

constexpr KernelEntry kKernels[] = {
    {Op::kReshape, "reshape", bind_reshape},
    {Op::kSlice, "slice", bind_slice},
    {Op::kConcat, "concat", bind_concat},
    {Op::kTranspose, "transpose", bind_transpose},
    {Op::kReduce, "reduce", bind_if<first_is_f32_or_bf16, bind_reduce>},
    {Op::kSelectRows, "select_rows", bind_select_rows},
    {Op::kSegmentMean, "segment_mean", bind_if<first_is_f32_or_bf16, bind_segment_mean>},
};

}  // namespace

std::span<const KernelEntry> shape_kernels() { return kKernels; }

}  // namespace octet::cuda
