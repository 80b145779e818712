// Kernel entries: the CPU kernels of each op, and how they bind to a node of a plan.
//
// Each op family has a folder: reference.cc (plain double loops, the definition, run by the interpreter) and fast
// entries. The executor takes the first entry that binds to a node; the reference entry, which binds to all, is last.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "kernels/common/dtype_sets.h"
#include "kernels/common/tensor.h"

namespace octet::cpu {

using octet::Tensor;

struct KernelArgs {
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  std::span<std::byte> workspace;  // shared scratch, at least kLeastWorkspace
};

using BoundKernel = std::function<void(const KernelArgs&)>;

struct KernelEntry {
  Op op;
  const char* name;  // "matmul_onednn_bf16"
  // The kernel of a node: reads attrs, builds primitives and tables, once. Null: the entry does not take the node.
  BoundKernel (*bind)(const Graph& graph, const Node& node);
};

// The families' fast entries, best first.
std::vector<KernelEntry> attention_kernels();
std::vector<KernelEntry> attention_grad_kernels();
std::vector<KernelEntry> cache_kernels();
std::vector<KernelEntry> embedding_kernels();
std::vector<KernelEntry> matmul_kernels();
std::vector<KernelEntry> optimiser_kernels();
std::vector<KernelEntry> paged_attention_kernels();
std::vector<KernelEntry> precision_kernels();
std::vector<KernelEntry> row_kernels();  // row by row: elementwise ops, norms, losses, rope, reductions, fusions
std::vector<KernelEntry> sampling_kernels();
std::vector<KernelEntry> shape_kernels();
std::vector<KernelEntry> stats_kernels();

// All entries of an op, best first, the reference last.
std::span<const KernelEntry> kernel_entries(Op op);
// The first entry that takes this node, bound to it.
struct SelectedKernel {
  const char* name;
  BoundKernel run;
};
SelectedKernel select_kernel(const Graph& graph, const Node& node);

// visit(float{}) or visit(BF16{}); with_wide_type: or visit(F16{}).
template <typename Visit>
auto with_float_type(DType dtype, const Visit& visit) {
  return dtype == DType::kBF16 ? visit(BF16{}) : visit(float{});
}
template <typename Visit>
auto with_wide_type(DType dtype, const Visit& visit) {
  return dtype == DType::kF16 ? visit(F16{}) : with_float_type(dtype, visit);
}

// Copies all bytes, unless they are the same or the result is unused.
void copy_tensor(const Tensor& from, const Tensor& to);

// Scratch available to every kernel: workspace_bytes() where a plan is made, which grows with thread_count(). Kernels
// that need more work in pieces, or on fewer threads. Which kernel takes a node depends on kLeastWorkspace alone.
inline constexpr int64_t kLeastWorkspace = int64_t{32} << 20;
inline constexpr int64_t kWorkspacePerThread = int64_t{9} << 18;  // operands packed by a GEMM; heads of 1024
int64_t workspace_bytes();
// As many of thread_count() threads as `bytes` have room for, `each` a thread; `op` is named where none has.
int64_t threads_with_room(const char* op, int64_t bytes, int64_t each);

// Reference kernels work on doubles, whatever the declared types; the caller rounds results to their declared types.
struct RefTensor {
  TensorType type;
  std::vector<double> values;
  int64_t size() const { return static_cast<int64_t>(values.size()); }
  int64_t rows() const { return type.shape.rows(); }
  int64_t cols() const { return type.shape.cols(); }
  double& operator[](int64_t i) { return values[static_cast<size_t>(i)]; }
  double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
  double* row(int64_t r) { return values.data() + r * cols(); }
  const double* row(int64_t r) const { return values.data() + r * cols(); }
};
RefTensor zeros(const TensorType& type);
using ReferenceFn = void (*)(const Node& node, std::span<const RefTensor* const> in, std::span<RefTensor> out);
ReferenceFn reference_kernel(Op op);  // throws for leaves and fusion (interpreted through its body)

}  // namespace octet::cpu
