// The table of CUDA kernel rows: for every op its families' rows, best first.
#include "base/error.h"
#include "ir/fusion.h"
#include "ir/text.h"
#include "kernels/cuda/families.h"

namespace octet::cuda {
namespace {

std::vector<std::vector<KernelRow>> make_table() {
  std::vector<std::vector<KernelRow>> table(all_ops().size());
  for (std::span<const KernelRow> family : families()) {
    for (const KernelRow& row : family) table[static_cast<size_t>(row.op)].push_back(row);
  }
  return table;
}

std::string types_of(const Graph& graph, const Node& node) {
  std::vector<std::string> types;
  for (Value v : node.inputs) types.push_back(v.exists() ? to_string(graph.type(v)) : "_");
  return fmt::format("{}", fmt::join(types, ", "));
}

}  // namespace

std::span<const KernelRow> kernel_rows(Op op) {
  static const std::vector<std::vector<KernelRow>> table = make_table();
  return table[static_cast<size_t>(op)];
}

const KernelRow& select_kernel(const Graph& graph, const Node& node) {
  for (const KernelRow& row : kernel_rows(node.op)) {
    if (row.accepts(graph, node)) return row;
  }
  const std::string label = node.op == Op::kFusion ? " of " + fusion_label(node) : "";
  const char* causal = node.attrs.get_or<bool>("causal", true) ? "" : " with causal=false";
  fail(ErrorCode::kUnsupported, "{} {}{}: no CUDA kernel for inputs {}{}; run with --device=cpu", op_name(node.op),
       node.name, label, types_of(graph, node), causal);
}

}  // namespace octet::cuda
