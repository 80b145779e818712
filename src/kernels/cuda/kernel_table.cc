// The table of CUDA kernel entries: for every op its families' entries, best first.
#include "base/error.h"
#include "ir/fusion.h"
#include "ir/text.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"

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

BoundKernel bind_to(const KernelEntry& entry, DeviceContext& context, const Fusion& fusion) {
  const bool known = fusion.producer && (entry.producers >> static_cast<int>(*fusion.producer) & 1) != 0;
  return known ? entry.bind_fusion(context, fusion) : BoundKernel();
}

}  // namespace

std::span<const KernelEntry> kernel_entries(Op op) {
  static const std::vector<std::vector<KernelEntry>> table = make_table();
  return table[static_cast<size_t>(op)];
}

BoundKernel KernelEntry::bind(DeviceContext& context, const Graph& graph, const Node& node) const {
  return bind_fusion != nullptr ? bind_to(*this, context, Fusion(graph, node)) : bind_node(context, graph, node);
}

bool KernelEntry::takes(const Graph& graph, const Node& node) const { return bool(bind(facts_alone(), graph, node)); }

SelectedKernel find_kernel(DeviceContext& context, const Graph& graph, const Node& node) {
  std::optional<Fusion> fusion;
  if (node.op == Op::kFusion) fusion.emplace(graph, node);
  for (const KernelEntry& entry : kernel_entries(node.op)) {
    BoundKernel kernel =
        entry.bind_fusion != nullptr ? bind_to(entry, context, *fusion) : entry.bind_node(context, graph, node);
    if (kernel) return {&entry, std::move(kernel)};
  }
  return {};
}

SelectedKernel select_kernel(DeviceContext& context, const Graph& graph, const Node& node) {
  if (SelectedKernel found = find_kernel(context, graph, node); found.entry != nullptr) return found;
  const std::string label = node.op == Op::kFusion ? " of " + fusion_label(node) : "";
  const char* causal = node.attrs.get_or<bool>("causal", true) ? "" : " with causal=false";
  fail(ErrorCode::kUnsupported, "{} {}{}: no CUDA kernel for inputs {}{}; run with --device=cpu", op_name(node.op),
       node.name, label, types_of(graph, node), causal);
}

const KernelEntry& select_kernel(const Graph& graph, const Node& node) {
  return *select_kernel(facts_alone(), graph, node).entry;
}

BoundKernel without_device() {
  return [](const KernelArgs&) { fail(ErrorCode::kInternal, "a kernel bound without a device was run"); };
}

void copy_tensor(const Tensor& from, const Tensor& to, cudaStream_t stream) {
  if (to.data == nullptr || from.data == to.data) return;  // a result that nobody reads is not made
  check_cuda(
      cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.type->bytes()), cudaMemcpyDeviceToDevice, stream),
      "copying a tensor");
}

}  // namespace octet::cuda
