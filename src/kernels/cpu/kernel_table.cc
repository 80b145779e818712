// The table of kernel rows: for every op its families' fast rows, best first, then a row that runs any node with its
// reference kernel: doubles in, declared types out, serial, and the only row that allocates when it runs.
#include "base/error.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/reference.h"

namespace octet::cpu {
namespace {

using Table = std::vector<std::vector<KernelRow>>;  // by op

bool accepts_everything(const Graph&, const Node&) { return true; }

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
  for (std::span<const KernelRow> family : fast_families()) {
    for (const KernelRow& row : family) table[static_cast<size_t>(row.op)].push_back(row);
  }
  for (const OpInfo& info : all_ops()) {
    table[static_cast<size_t>(info.op)].push_back({info.op, "reference", accepts_everything, bind_reference});
  }
  return table;
}

}  // namespace

std::span<const KernelRow> kernel_rows(Op op) {
  static const Table table = make_table();
  return table[static_cast<size_t>(op)];
}

const KernelRow& select_kernel(const Graph& graph, const Node& node) {
  for (const KernelRow& row : kernel_rows(node.op)) {
    if (row.accepts(graph, node)) return row;
  }
  fail(ErrorCode::kInternal, "op {} has no kernel row", op_name(node.op));
}

int64_t workspace_bytes() { return int64_t{32} << 20; }

}  // namespace octet::cpu
