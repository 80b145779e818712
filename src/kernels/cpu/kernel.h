// Kernel entries: the CPU kernels of each op, the nodes they accept, and how they bind to a node of a plan.
//
// Each op family has a folder: reference.cc (plain double loops, the definition, run by the interpreter) and fast
// entries. The executor takes the first entry that accepts a node; the reference entry, which accepts all, is last.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "kernels/common/tensor.h"

namespace octet::cpu {

using octet::Tensor;

struct KernelArgs {
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  std::span<std::byte> workspace;  // shared scratch of cpu_workspace_bytes()
};

using BoundKernel = std::function<void(const KernelArgs&)>;

struct KernelEntry {
  Op op;
  const char* name;  // "matmul_onednn_bf16"
  bool (*accepts)(const Graph& graph, const Node& node);
  BoundKernel (*bind)(const Graph& graph, const Node& node);  // reads attrs, builds primitives and tables, once
};

// All entries of an op, best first (static table, assembled from the families' lists).
std::span<const KernelEntry> kernel_entries(Op op);
// The first entry that accepts this node.
const KernelEntry& select_kernel(const Graph& graph, const Node& node);

// Scratch available to every kernel; kernels that need more work in pieces.
int64_t workspace_bytes();

// Reference kernels work on doubles, whatever the declared types; the caller rounds results to their declared types.
struct RefTensor {
  TensorType type;
  std::vector<double> values;
};
using ReferenceFn = void (*)(const Node& node, std::span<const RefTensor* const> in, std::span<RefTensor> out);
ReferenceFn reference_kernel(Op op);  // null for leaves and fusion (interpreted through its body)

}  // namespace octet::cpu
