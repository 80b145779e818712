// Running one CUDA kernel entry on host buffers: uploads between guard bands, runs, downloads. For tests and
// benchmarks.
#pragma once

#include "kernels/cpu/testing/conformance.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/kernel.h"

namespace octet::cuda {

// The one context of a test program; null where there is no GPU, with the reason in `why`.
DeviceContext* test_context(std::string* why);

// The entry as a kernel on host memory. Results are poisoned before, guard bands around every device buffer are checked
// after (throws kInternal naming the buffer), a result in the place of an input shares its device buffer.
// `ran`, where given, becomes the name of the entry whose kernel runs: the fallback's where there is one.
cpu::BoundKernel on_device(DeviceContext& context, const KernelEntry& entry, const Graph& graph, const Node& node,
                           std::string* ran = nullptr);

// The bytes of the node's results by this entry, and by the entry that select_kernel takes.
std::vector<std::vector<std::byte>> run_row(DeviceContext& context, const KernelEntry& entry, const Graph& graph,
                                            const Node& node, const std::vector<cpu::RefTensor>& inputs);
std::vector<std::vector<std::byte>> run_node(DeviceContext& context, const Graph& graph, const Node& node,
                                             const std::vector<cpu::RefTensor>& inputs);

// What of a fusion differs from its members run one by one on the device: results bit for bit, each result alone, and
// results in the place of operands wherever the plan may put them. Empty: nothing.
std::vector<std::string> fusion_failures(DeviceContext& context, const cpu::BuiltCase& fusion);

}  // namespace octet::cuda
