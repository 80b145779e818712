// The table of CUDA kernel entries: for every op its families' entries, best first.
#include "base/error.h"
#include "ir/fusion.h"
#include "ir/text.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"

namespace octet::cuda {
namespace {

std::vector<std::vector<KernelEntry>> make_table() {
  std::vector<std::vector<KernelEntry>> table(all_ops().size());
  for (const auto family :
       {matmul_kernels, norm_kernels, elementwise_kernels, activation_kernels, precision_kernels, attention_kernels,
        position_kernels, embedding_kernels, loss_kernels, shape_kernels, optimiser_kernels, inference_kernels,
        sampling_kernels, experts_kernels, collective_kernels, fusion_member_kernels}) {
    for (const KernelEntry& entry : family()) table[static_cast<size_t>(entry.op)].push_back(entry);
  }
  return table;
}

std::string types_of(const Graph& graph, const Node& node) {
  std::vector<std::string> types;
  for (Value v : node.inputs) types.push_back(v.exists() ? to_string(graph.type(v)) : "_");
  return fmt::format("{}", fmt::join(types, ", "));
}

}  // namespace

std::span<const KernelEntry> kernel_entries(Op op) {
  static const std::vector<std::vector<KernelEntry>> table = make_table();
  return table[static_cast<size_t>(op)];
}

const KernelEntry& select_kernel(const Graph& graph, const Node& node) {
  for (const KernelEntry& entry : kernel_entries(node.op)) {
    if (entry.accepts(graph, node)) return entry;
  }
  const std::string label = node.op == Op::kFusion ? " of " + fusion_label(node) : "";
  const char* causal = node.attrs.get_or<bool>("causal", true) ? "" : " with causal=false";
  fail(ErrorCode::kUnsupported, "{} {}{}: no CUDA kernel for inputs {}{}; run with --device=cpu", op_name(node.op),
       node.name, label, types_of(graph, node), causal);
}

void copy_tensor(const Tensor& from, const Tensor& to, cudaStream_t stream) {
  if (to.data == nullptr || from.data == to.data) return;  // a result that nobody reads is not made
  check_cuda(
      cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.type->bytes()), cudaMemcpyDeviceToDevice, stream),
      "copying a tensor");
}

}  // namespace octet::cuda
