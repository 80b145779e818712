// The ops that work row by row, with the families that make their row kernels, and their entries: a node alone, and
// fusions whose members are all such ops.
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

struct RowOp {
  Op op;
  const char* name;  // of its entry; null: it is a row kernel inside fusions only
  std::optional<RowKernel> (*make)(const Graph& graph, const Node& node, RowUse use);
};

constexpr RowOp kRowOps[] = {
    {Op::kCast, "cast_rows", cast_row_kernel},
    {Op::kScale, "scale_rows", unary_row_kernel},
    {Op::kGelu, "gelu_rows", unary_row_kernel},
    {Op::kGeluGrad, "gelu_grad_rows", unary_row_kernel},
    {Op::kSilu, "silu_rows", unary_row_kernel},
    {Op::kSiluGrad, "silu_grad_rows", unary_row_kernel},
    {Op::kRelu, "relu_rows", unary_row_kernel},
    {Op::kReluGrad, "relu_grad_rows", unary_row_kernel},
    {Op::kTanh, "tanh_rows", unary_row_kernel},
    {Op::kAdd, "add_rows", binary_row_kernel},
    {Op::kSub, "sub_rows", binary_row_kernel},
    {Op::kMul, "mul_rows", binary_row_kernel},
    {Op::kMaximum, "maximum_rows", binary_row_kernel},
    {Op::kDropout, "dropout_philox", dropout_row_kernel},
    {Op::kLayerNorm, "layer_norm_rows", norm_row_kernel},
    {Op::kLayerNormGrad, "layer_norm_grad_rows", norm_grad_row_kernel},
    {Op::kRmsNorm, "rms_norm_rows", norm_row_kernel},
    {Op::kRmsNormGrad, "rms_norm_grad_rows", norm_grad_row_kernel},
    {Op::kReduce, "reduce_rows", reduce_row_kernel},
    {Op::kRope, "rope_rows", rope_row_kernel},
    {Op::kCrossEntropy, "cross_entropy_rows", cross_entropy_row_kernel},
    {Op::kCrossEntropyGrad, "cross_entropy_grad_rows", cross_entropy_row_kernel},
    {Op::kRowLse, "row_lse_rows", cross_entropy_row_kernel},
    {Op::kQuantize, nullptr, quantize_row_kernel},
};

BoundKernel bind(const Graph& graph, const Node& node) {
  auto program = node.op == Op::kFusion ? RowProgram::of_body(*node.body) : RowProgram::of_node(graph, node);
  if (!program) return nullptr;
  return [program = *std::move(program)](const KernelArgs& args) { program.run(args); };
}

}  // namespace

std::optional<RowKernel> make_row_kernel(const Graph& graph, const Node& node, RowUse use) {
  for (const RowOp& row : kRowOps) {
    if (row.op == node.op) return row.make(graph, node, use);
  }
  return std::nullopt;
}

std::vector<KernelEntry> row_kernels() {
  std::vector<KernelEntry> entries = {{Op::kFusion, "fusion_rows", bind}};
  for (const RowOp& row : kRowOps) {
    if (row.name != nullptr) entries.push_back({row.op, row.name, bind});
  }
  return entries;
}

}  // namespace octet::cpu
