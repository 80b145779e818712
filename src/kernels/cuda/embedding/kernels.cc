// Rows of table lookup and its gradient.
#include "kernels/common/parts.h"
#include "kernels/cuda/embedding/embedding.h"
#include "kernels/cuda/families.h"

namespace octet::cuda {
namespace {

BoundKernel bind_lookup(DeviceContext& context, const Graph& graph, const Node& node) {
  const TensorType& table = graph.type(node.inputs[1]);
  if (!is_wide_float(table.dtype) || !is_wide_float(node.results[0].dtype)) return {};
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

BoundKernel bind_gradient(DeviceContext& context, const Graph& graph, const Node& node) {
  const TensorType& result = node.results[0];
  if (!is_f32_or_bf16(graph.dtype(node.inputs[1])) || result.dtype != DType::kF32 ||
      (has_addend(node) && graph.dtype(node.inputs[2]) != DType::kF32))
    return {};
  const int64_t tokens = graph.shape(node.inputs[0]).elements();
  const auto run = [args = EmbeddingGradArgs{.tokens = tokens,
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
  return {run, embedding_grad_workspace(tokens, result.shape.rows())};
}

constexpr KernelEntry kKernels[] = {
    {Op::kEmbedding, "embedding_vector_copy", bind_lookup},
    {Op::kEmbeddingGrad, "embedding_grad_gather", bind_gradient},
};

}  // namespace

std::span<const KernelEntry> embedding_kernels() { return kKernels; }

}  // namespace octet::cuda
