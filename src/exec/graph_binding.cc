#include "exec/graph_binding.h"

#include <algorithm>

#include "base/error.h"

namespace octet {

std::byte* PlanMemory::address(const BufferRef& ref) const {
  switch (ref.kind) {
    case BufferRef::Kind::kNone: return nullptr;
    case BufferRef::Kind::kArena: return arena + ref.offset;
    case BufferRef::Kind::kState: return states.at(static_cast<size_t>(ref.index)) + ref.offset;
    case BufferRef::Kind::kInput: return inputs.at(static_cast<size_t>(ref.index)) + ref.offset;
  }
  return nullptr;
}

std::vector<StateCopy> state_copies(const Program& program, const Graph& graph, const GraphPlan& plan,
                                    const PlanMemory& memory) {
  std::vector<StateCopy> copies;
  for (const NamedValue& update : graph.updates()) {
    const auto& states = program.states();
    auto entry = std::ranges::find_if(states, [&](const StateEntry& s) { return s.name == update.name; });
    check(entry != states.end(), ErrorCode::kInternal, "graph '{}' updates state '{}', which does not exist",
          graph.name(), update.name);
    std::byte* to = memory.states[static_cast<size_t>(entry - states.begin())];
    const Value value = update.value;
    const std::byte* from = memory.address(plan.buffers[slot(value.node)][static_cast<size_t>(value.result)]);
    check(from != nullptr, ErrorCode::kInternal, "graph '{}': the update of state '{}' has no buffer in the plan",
          graph.name(), update.name);
    if (from != to) copies.push_back({to, from, static_cast<size_t>(graph.type(value).bytes())});
  }
  for (size_t done = 0; done < copies.size(); ++done) {
    auto is_free = [&](const StateCopy& copy) {  // nobody still to run reads what it overwrites
      return std::none_of(copies.begin() + static_cast<ptrdiff_t>(done), copies.end(), [&](const StateCopy& other) {
        return &other != &copy && other.from < copy.to + copy.bytes && copy.to < other.from + other.bytes;
      });
    };
    auto next = std::find_if(copies.begin() + static_cast<ptrdiff_t>(done), copies.end(), is_free);
    check(next != copies.end(), ErrorCode::kUnsupported,
          "graph '{}': states are updated from each other in a circle: put a cast or scale by 1 between", graph.name());
    std::swap(copies[done], *next);
  }
  return copies;
}

size_t find_input(const Graph& graph, const GraphPlan& plan, const std::string& name) {
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    if (graph.node(plan.inputs[i]).name == name) return i;
  }
  std::vector<std::string> names;
  for (NodeId id : plan.inputs) names.push_back(graph.node(id).name);
  fail(ErrorCode::kNotFound, "graph '{}' has no input '{}'; it has: {}", graph.name(), name, fmt::join(names, ", "));
}

NodeTime node_time(const Graph& graph, NodeId id, const std::string& kernel, int64_t calls, double seconds) {
  const Node& node = graph.node(id);
  const Cost cost = node_cost(graph, id);
  return {.graph = graph.name(),
          .name = node.name,
          .op = node_label(node),
          .kernel = kernel,
          .calls = calls,
          .seconds = seconds,
          .flops = cost.flops * static_cast<double>(calls),
          .bytes = cost.bytes * static_cast<double>(calls)};
}

std::vector<int64_t> state_offsets(const Program& program, int64_t alignment, int64_t& bytes) {
  std::vector<int64_t> offsets;
  bytes = 0;
  for (const StateEntry& entry : program.states()) {
    offsets.push_back(bytes);
    bytes += slot_bytes(entry, alignment);
  }
  return offsets;
}

}  // namespace octet
