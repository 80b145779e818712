// Rows of table lookup and its gradient.
#include "kernels/common/parts.h"
#include "kernels/cuda/embedding/embedding.h"
#include "kernels/cuda/families.h"

namespace octet::cuda {
namespace {

bool accepts_lookup(const Graph& graph, const Node& node) {
  return is_wide_float(graph.dtype(node.inputs[1])) && is_wide_float(node.results[0].dtype);
}

BoundKernel bind_lookup(DeviceContext& context, const Graph& graph, const Node& node) {
  const TensorType& table = graph.type(node.inputs[1]);
  const TablePart part(node);
  return [args = EmbeddingArgs{.tokens = graph.shape(node.inputs[0]).elements(),
                               .rows = table.shape.rows(),
                               .cols = table.shape.cols(),
                               .first = static_cast<int32_t>(part.first),
                               .is_part = part.is_part,
                               .table_type = table.dtype,
                               .out_type = node.results[0].dtype}](const KernelArgs& call) mutable {
    args.ids = call.in[0].as<const int32_t>();
    args.table = call.in[1].data;
    args.out = call.out[0].data;
    if (args.out != nullptr) launch_embedding(args, call.stream);
  };
}

bool has_addend(const Node& node) { return node.inputs.size() > 2 && node.inputs[2].exists(); }

bool accepts_gradient(const Graph& graph, const Node& node) {
  const DType dy = graph.dtype(node.inputs[1]);
  return is_f32_or_bf16(dy) && node.results[0].dtype == DType::kF32 &&
         (!has_addend(node) || graph.dtype(node.inputs[2]) == DType::kF32);
}

BoundKernel bind_gradient(DeviceContext& context, const Graph& graph, const Node& node) {
  const TensorType& result = node.results[0];
  return [args = EmbeddingGradArgs{.tokens = graph.shape(node.inputs[0]).elements(),
                                   .rows = result.shape.rows(),
                                   .cols = result.shape.cols(),
                                   .first = static_cast<int32_t>(TablePart(node).first),
                                   .dy_type = graph.dtype(node.inputs[1])},
          adds = has_addend(node)](const KernelArgs& call) mutable {
    args.ids = call.in[0].as<const int32_t>();
    args.dy = call.in[1].data;
    args.c = adds ? call.in[2].as<const float>() : nullptr;
    args.dtable = call.out[0].as<float>();
    args.workspace = reinterpret_cast<int32_t*>(call.workspace.data());
    if (args.dtable != nullptr) launch_embedding_grad(args, call.stream);
  };
}

int64_t gradient_workspace(DeviceContext& context, const Graph& graph, const Node& node) {
  return embedding_grad_workspace(graph.shape(node.inputs[0]).elements(), node.results[0].shape.rows());
}

constexpr KernelEntry kKernels[] = {
    {Op::kEmbedding, "embedding_vector_copy", accepts_lookup, bind_lookup},
    {Op::kEmbeddingGrad, "embedding_grad_gather", accepts_gradient, bind_gradient, gradient_workspace},
};

}  // namespace

std::span<const KernelEntry> embedding_kernels() { return kKernels; }

}  // namespace octet::cuda
