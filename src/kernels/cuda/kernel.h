// Kernel entries on CUDA: which kernels exist for an op, what they accept, how they bind to one node of a plan.
//
// Each op family has a folder: kernels and launchers in *.cu behind a small header (no IR types), entries in
// kernels.cc. For a node the executor takes the first entry that accepts it; there is no reference entry: a node that
// no entry accepts is an error at construction. Everything a bound kernel does is work on args.stream: it may be
// captured into a CUDA graph, so it must not allocate, synchronise, read device memory on the host, or keep host
// pointers that change between calls.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "kernels/common/tensor.h"

namespace octet::cuda {

class DeviceContext;

using octet::Tensor;

struct KernelArgs {
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  std::span<std::byte> workspace;  // device scratch, 256-byte aligned, at least the entry's workspace bytes; dirty
  cudaStream_t stream = nullptr;
  bool next_reads_ahead = false;  // BoundKernel::reads_ahead of the next step
};

// Where the next piece of the workspace begins behind so many bytes.
constexpr int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Operand i of a kernel's arguments, -1: null.
inline void* at(std::span<const Tensor> tensors, int i) {
  return i < 0 ? nullptr : tensors[static_cast<size_t>(i)].data;
}
template <typename T>
T* at(std::span<const Tensor> tensors, int i) {
  return static_cast<T*>(at(tensors, i));
}

// An entry bound to one node.
struct BoundKernel {
  std::function<void(const KernelArgs&)> run;
  bool reads_ahead = false;  // weights, and may be resident beside any kernel: griddep_begin (common/overlap.cuh)
  const char* fallback_kernel = nullptr;  // the entry whose kernel runs instead, where a library has none for this node
  // What was chosen among the entry's kernels, for profiles: "persistent, 2 rows, 3 stages". Null: there is no choice.
  std::function<std::string(const KernelArgs&)> variant;

  BoundKernel() = default;
  template <std::invocable<const KernelArgs&> Run>
  BoundKernel(Run kernel) : run(std::move(kernel)) {}
  template <std::invocable<const KernelArgs&> Run, std::invocable<const KernelArgs&> Variant>
  BoundKernel(Run kernel, Variant chosen) : run(std::move(kernel)), variant(std::move(chosen)) {}
  void operator()(const KernelArgs& args) const { run(args); }
  // "norm_fusion[persistent, 2 rows, 3 stages]"
  std::string label(const char* row, const KernelArgs& args) const {
    const std::string name = fallback_kernel != nullptr ? fallback_kernel : row;
    return variant ? name + "[" + variant(args) + "]" : name;
  }
};

struct KernelEntry {
  Op op;
  const char* name;  // "matmul_cublaslt"
  bool (*accepts)(const Graph& graph, const Node& node);
  // Reads attrs, chooses instances and algorithms, builds descriptors, once.
  BoundKernel (*bind)(DeviceContext& context, const Graph& graph, const Node& node);
  // Device scratch this node needs; null: none.
  int64_t (*workspace)(DeviceContext& context, const Graph& graph, const Node& node) = nullptr;
};

// All entries of an op, best first (static table, assembled from the families' lists).
std::span<const KernelEntry> kernel_entries(Op op);
// The entry that runs this node; throws kUnsupported naming the node and its types when there is none.
const KernelEntry& select_kernel(const Graph& graph, const Node& node);

}  // namespace octet::cuda
