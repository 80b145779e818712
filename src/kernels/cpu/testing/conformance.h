// Comparing a kernel row with the reference on one node: guard bands around every buffer, poisoned results, inputs that
// must not change, absent results, in-place results where the op's facts allow it. For tests.
#pragma once

#include <string>
#include <vector>

#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {

// Deviations allowed beyond the tolerance: fused kernels round intermediate values that differ by a few ulp, which
// moves a small fraction of 16-bit values and codes to an adjacent one, and float32 sums over them.
struct Neighbours {
  double share = 0;     // of a result's elements that may be one unit in the last place off
  double f32_unit = 0;  // that unit for float32 results: of the 16-bit values they are made from
};

// Errors of a bound kernel (of any device, on host buffers) on this node, one line each; empty if it agrees with
// `expected` = evaluate_node().
std::vector<std::string> check_kernel(const char* name, const BoundKernel& kernel, const Graph& graph, const Node& node,
                                      const std::vector<RefTensor>& inputs, const std::vector<RefTensor>& expected,
                                      const Tolerance& tolerance, Neighbours neighbours = {});
std::vector<std::string> check_row(const KernelEntry& row, const Graph& graph, const Node& node,
                                   const std::vector<RefTensor>& inputs, const std::vector<RefTensor>& expected,
                                   const Tolerance& tolerance, Neighbours neighbours = {});

// The bytes of the node's results computed by the row that select_kernel chooses; absent inputs have no values.
std::vector<std::vector<std::byte>> run_node(const Graph& graph, const Node& node,
                                             const std::vector<RefTensor>& inputs);
// With less scratch than kLeastWorkspace.
std::vector<std::vector<std::byte>> run_node_within(int64_t workspace_bytes, const Graph& graph, const Node& node,
                                                    const std::vector<RefTensor>& inputs);

// Differences between the fusion's results and those of its members run one by one, each by its best row: one line
// each.
using NodeRunner = std::function<std::vector<std::vector<std::byte>>(const Graph& graph, const Node& node,
                                                                     const std::vector<RefTensor>& inputs)>;
std::vector<std::string> check_fusion(const Graph& graph, const Node& fusion, const std::vector<RefTensor>& inputs,
                                      const NodeRunner& run = run_node);

}  // namespace octet::cpu
