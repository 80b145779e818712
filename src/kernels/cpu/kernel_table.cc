// The table of kernel entries: for every op its families' fast entries, best first, then an entry that runs any node
// with its reference kernel: doubles in, declared types out, serial, and the only entry that allocates when it runs.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/experts/experts.h"
#include "kernels/cpu/reference.h"

namespace octet::cpu {
namespace {

using Table = std::vector<std::vector<KernelEntry>>;  // by op

BoundKernel bind_reference(const Graph& graph, const Node& node) {
  return [&graph, &node](const KernelArgs& args) {
    std::vector<RefTensor> inputs(args.in.size());
    std::vector<const RefTensor*> pointers(args.in.size(), nullptr);
    for (size_t i = 0; i < args.in.size(); ++i) {
      if (args.in[i].data == nullptr) continue;
      inputs[i] = load_tensor(*args.in[i].type, args.in[i].data);
      pointers[i] = &inputs[i];
    }
    const std::vector<RefTensor> results = evaluate_node(graph, node, pointers, true);
    for (size_t i = 0; i < results.size(); ++i) {
      if (args.out[i].data != nullptr) store_tensor(results[i], args.out[i].data);
    }
  };
}

Table make_table() {
  Table table(all_ops().size());
  for (const auto& family :
       {attention_kernels(), attention_grad_kernels(), cache_kernels(), embedding_kernels(), experts_kernels(),
        matmul_kernels(), optimiser_kernels(), paged_attention_kernels(), precision_kernels(), row_kernels(),
        sampling_kernels(), shape_kernels(), stats_kernels()}) {
    for (const KernelEntry& entry : family) table[static_cast<size_t>(entry.op)].push_back(entry);
  }
  for (const OpInfo& info : all_ops()) {
    table[static_cast<size_t>(info.op)].push_back({info.op, "reference", bind_reference});
  }
  return table;
}

}  // namespace

std::span<const KernelEntry> kernel_entries(Op op) {
  static const Table table = make_table();
  return table[static_cast<size_t>(op)];
}

SelectedKernel select_kernel(const Graph& graph, const Node& node) {
  for (const KernelEntry& entry : kernel_entries(node.op)) {
    if (BoundKernel kernel = entry.bind(graph, node)) return {entry.name, std::move(kernel)};
  }
  fail(ErrorCode::kInternal, "op {} has no kernel entry", op_name(node.op));
}

void copy_tensor(const Tensor& from, const Tensor& to) {
  if (to.data == nullptr || from.data == to.data) return;
  parallel_for(to.type->bytes(), 128 * 1024, [&](int64_t begin, int64_t end) {
    std::memcpy(to.as<std::byte>() + begin, from.as<const std::byte>() + begin, static_cast<size_t>(end - begin));
  });
}

int64_t workspace_bytes() { return std::max(kLeastWorkspace, thread_count() * kWorkspacePerThread); }

int64_t threads_with_room(const char* op, int64_t bytes, int64_t each) {
  check(bytes >= each, ErrorCode::kUnsupported, "{}: a thread needs {} bytes of scratch, there are {}", op, each,
        bytes);
  return each == 0 ? thread_count() : std::min<int64_t>(thread_count(), bytes / each);
}

}  // namespace octet::cpu
