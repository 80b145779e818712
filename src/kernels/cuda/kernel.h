// Kernel entries on CUDA: which kernels exist for an op, and how they bind to one node of a plan.
//
// Each op family has a folder: kernels and launchers in *.cu behind a small header (no IR types), entries in
// kernels.cc. For a node the executor takes the first entry that binds to it; there is no reference entry: a node that
// no entry takes is an error at construction. Everything a bound kernel does is work on args.stream: it may be
// captured into a CUDA graph, so it must not allocate, synchronise, read device memory on the host, or keep host
// pointers that change between calls.
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/fusion.h"
#include "ir/graph.h"
#include "kernels/common/tensor.h"

namespace octet::cuda {

class DeviceContext;

using octet::Tensor;

struct KernelArgs {
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  std::span<std::byte> workspace;  // device scratch, 256-byte aligned, at least BoundKernel::workspace; dirty
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

// An entry bound to one node; nothing where the entry does not take it.
struct BoundKernel {
  std::function<void(const KernelArgs&)> run;
  int64_t workspace = 0;     // bytes of device scratch
  bool reads_ahead = false;  // weights, and may be resident beside any kernel: griddep_begin (common/overlap.cuh)
  const char* fallback_kernel = nullptr;  // the entry whose kernel runs instead, where a library has none for this node
  // What was chosen among the entry's kernels, for profiles: "persistent, 2 rows, 3 stages". Null: there is no choice.
  std::function<std::string(const KernelArgs&)> variant;

  BoundKernel() = default;
  template <std::invocable<const KernelArgs&> Run>
  BoundKernel(Run kernel, int64_t workspace = 0) : run(std::move(kernel)), workspace(workspace) {}
  template <std::invocable<const KernelArgs&> Run, std::invocable<const KernelArgs&> Variant>
  BoundKernel(Run kernel, Variant chosen, int64_t workspace = 0)
      : run(std::move(kernel)), workspace(workspace), variant(std::move(chosen)) {}
  explicit operator bool() const { return run != nullptr; }
  void operator()(const KernelArgs& args) const { run(args); }
  // "norm_fusion[persistent, 2 rows, 3 stages]"
  std::string label(const char* row, const KernelArgs& args) const {
    const std::string name = fallback_kernel != nullptr ? fallback_kernel : row;
    return variant ? name + "[" + variant(args) + "]" : name;
  }
};

struct Fusion;  // fusion_body.h: read once for all entries

// The kernel of a node: reads attrs, chooses instances and algorithms, builds descriptors, once. Nothing: the entry
// does not take the node, which follows from the node alone. In a context without a device nothing is made there, and
// the kernel does not run.
using BindNode = BoundKernel (*)(DeviceContext& context, const Graph& graph, const Node& node);
using BindFusion = BoundKernel (*)(DeviceContext& context, const Fusion& fusion);

struct KernelEntry {
  constexpr KernelEntry(Op op, const char* name, BindNode bind) : op(op), name(name), bind_node(bind) {}
  // Of fusions of these producers.
  constexpr KernelEntry(std::initializer_list<Producer> of, const char* name, BindFusion bind)
      : op(Op::kFusion), name(name), bind_fusion(bind) {
    for (Producer producer : of) producers |= 1u << static_cast<int>(producer);
  }
  BoundKernel bind(DeviceContext& context, const Graph& graph, const Node& node) const;
  bool takes(const Graph& graph, const Node& node) const;  // asked without a device

  Op op;
  const char* name;  // "matmul_cublaslt"
  BindNode bind_node = nullptr;
  BindFusion bind_fusion = nullptr;
  uint32_t producers = 0;
};

// All entries of an op, best first (static table, assembled from the families' lists).
std::span<const KernelEntry> kernel_entries(Op op);
// The entry that runs this node, asked without a device; throws kUnsupported naming the node and its types when there
// is none.
const KernelEntry& select_kernel(const Graph& graph, const Node& node);
// The same, bound.
struct SelectedKernel {
  const KernelEntry* entry = nullptr;  // null: there is none
  BoundKernel kernel;
};
SelectedKernel select_kernel(DeviceContext& context, const Graph& graph, const Node& node);
SelectedKernel find_kernel(DeviceContext& context, const Graph& graph, const Node& node);
// What an entry returns that takes a node, where it has no device to bind to.
BoundKernel without_device();

}  // namespace octet::cuda
