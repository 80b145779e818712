// What executors share when they bind a planned graph to addresses: which nodes are work, and the copies into states.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

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

// Offsets of states and of a graph's inputs in one block each, every one aligned; `bytes` gets the block's size.
std::vector<int64_t> state_offsets(const Program& program, int64_t alignment, int64_t& bytes);
inline int64_t align_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace octet
