// Kernel rows: the CPU kernels of each op, the nodes they accept, and how they bind to a node of a plan.
//
// Each op family has a folder: reference.cc (plain double loops, the definition, run by the interpreter) and fast rows.
// The executor takes the first row that accepts a node; the reference row, which accepts all, is last.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace octet::cpu {

// A contiguous tensor in memory; data is null for unused results and absent inputs.
struct Tensor {
  void* data = nullptr;
  const TensorType* type = nullptr;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  const Shape& shape() const { return type->shape; }
  DType dtype() const { return type->dtype; }
  int64_t elements() const { return type->shape.elements(); }
};

struct KernelArgs {
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  std::span<std::byte> workspace;  // shared scratch of cpu_workspace_bytes()
};

using BoundKernel = std::function<void(const KernelArgs&)>;

struct KernelRow {
  Op op;
  const char* name;  // "matmul_onednn_bf16"
  bool (*accepts)(const Graph& graph, const Node& node);
  BoundKernel (*bind)(const Graph& graph, const Node& node);  // reads attrs, builds primitives and tables, once
};

// All rows of an op, best first (static table, assembled from the families' lists).
std::span<const KernelRow> kernel_rows(Op op);
// The first row that accepts this node.
const KernelRow& select_kernel(const Graph& graph, const Node& node);

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
