// What executors share when they bind a planned graph to addresses: which nodes are work, and the copies into states.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/error.h"
#include "exec/executor.h"
#include "ir/facts.h"
#include "ir/plan.h"

namespace octet {

// Where the three kinds of buffers live, host or device.
struct PlanMemory {
  std::byte* arena = nullptr;
  std::vector<std::byte*> states;  // by index in the state table
  std::vector<std::byte*> inputs;  // of this graph

  std::byte* address(const BufferRef& ref) const;
};

// Leaves that are addresses, not work.
inline bool is_buffer_leaf(Op op) { return op == Op::kInput || op == Op::kParam || op == Op::kState; }

// Inputs, then results, of a node as a backend's Tensor {data, type}: data is null where an input is absent or a result
// unwanted. Null when there is nothing to run: no result is wanted, or a view shares its input's bytes.
template <typename Tensor>
std::unique_ptr<Tensor[]> bind_operands(const Graph& graph, NodeId id, const GraphPlan& plan,
                                        const PlanMemory& memory) {
  const Node& node = graph.node(id);
  const auto& refs = plan.buffers[static_cast<size_t>(index(id))];
  auto tensors = std::make_unique<Tensor[]>(node.inputs.size() + node.results.size());
  bool used = false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const Value value = node.inputs[i];
    if (!value.exists()) continue;
    const BufferRef& ref = plan.buffers[static_cast<size_t>(index(value.node))][static_cast<size_t>(value.result)];
    tensors[i] = {memory.address(ref), &graph.type(value)};
    check(tensors[i].data != nullptr, ErrorCode::kInternal, "{}: input {} has no buffer in the plan",
          describe(graph, id), i);
  }
  Tensor* results = tensors.get() + node.inputs.size();
  for (size_t i = 0; i < node.results.size(); ++i) {
    results[i] = {i < refs.size() ? memory.address(refs[i]) : nullptr, &node.results[i]};
    used = used || results[i].data != nullptr;
  }
  if (!used || (op_facts(node.op).view && results[0].data == tensors[0].data)) return nullptr;
  return tensors;
}

// An update whose value was not computed in the state's own buffer.
struct StateCopy {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};
// The graph's copies, ordered so that one that reads a state runs before the one that overwrites it.
std::vector<StateCopy> state_copies(const Program& program, const Graph& graph, const GraphPlan& plan,
                                    const PlanMemory& memory);

// Index of the input node `name` in plan.inputs; throws kNotFound with the names there are.
size_t find_input(const Graph& graph, const GraphPlan& plan, const std::string& name);

// The profile's line of a node whose kernel took so long in so many calls.
NodeTime node_time(const Graph& graph, NodeId id, const std::string& kernel, int64_t calls, double seconds);

// Offsets of states and of a graph's inputs in one block each, every one aligned; `bytes` gets the block's size.
std::vector<int64_t> state_offsets(const Program& program, int64_t alignment, int64_t& bytes);
inline int64_t align_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace octet
