#include "ir/program.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "ir/facts.h"

namespace octet {
namespace {

[[noreturn]] void throw_no_graph(const Program& program, const std::string& name) {
  std::vector<std::string> names;
  for (const Graph& graph : program.graphs()) names.push_back(graph.name());
  fail(ErrorCode::kNotFound, "program {} has no graph '{}'; it has: {}", program.name, name, fmt::join(names, ", "));
}

}  // namespace

const char* state_kind_name(StateKind kind) {
  constexpr const char* kNames[] = {"param", "compute", "moment", "gradient", "scale", "quantized", "kv_cache"};
  return kNames[static_cast<size_t>(kind)];
}

StateEntry& Program::add_state(StateEntry entry) {
  auto [found, added] = state_index_.try_emplace(entry.name, states_.size());
  if (added) {
    states_.push_back(std::move(entry));
    return states_.back();
  }
  StateEntry& known = states_[found->second];
  check(known.type == entry.type, ErrorCode::kInternal, "state {} is {} and is now declared as {}", entry.name,
        to_string(known.type), to_string(entry.type));
  return known;
}

const StateEntry* Program::find_state(const std::string& name) const {
  auto found = state_index_.find(name);
  return found == state_index_.end() ? nullptr : &states_[found->second];
}

int64_t Program::state_bytes(StateKind kind) const {
  int64_t bytes = 0;
  for (const StateEntry& entry : states_) bytes += entry.kind == kind ? entry.type.bytes() : 0;
  return bytes;
}

Graph& Program::add_graph(Graph graph) {
  if (Graph* known = find_graph(graph.name())) return *known = std::move(graph);
  graphs_.push_back(std::move(graph));
  return graphs_.back();
}

const Graph* Program::find_graph(const std::string& name) const {
  auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& graph) { return graph.name() == name; });
  return found == graphs_.end() ? nullptr : &*found;
}

Graph* Program::find_graph(const std::string& name) {
  return const_cast<Graph*>(static_cast<const Program*>(this)->find_graph(name));
}

const Graph& Program::graph(const std::string& name) const {
  const Graph* found = find_graph(name);
  if (found == nullptr) throw_no_graph(*this, name);
  return *found;
}

Graph& Program::graph(const std::string& name) {
  return const_cast<Graph&>(static_cast<const Program*>(this)->graph(name));
}

void collect_state(Program& program) {
  auto add = [&](const std::string& name, const TensorType& type, StateKind kind, double initial = 0) {
    if (program.find_state(name) != nullptr) return;
    program.add_state({.name = name,
                       .type = type,
                       .kind = kind,
                       .param = kind == StateKind::kParam ? name : std::string(),
                       .initial = initial});
  };
  for (const Graph& graph : program.graphs()) {
    std::vector<bool> is_cache(static_cast<size_t>(graph.size()), false);
    for (const Node& node : graph.nodes()) {
      for (int input : overwritten_inputs(node)) {
        is_cache[static_cast<size_t>(index(node.inputs[static_cast<size_t>(input)].node))] = true;
      }
    }
    for (int32_t i = 0; i < graph.size(); ++i) {
      const Node& node = graph.node(NodeId{i});
      if (node.op == Op::kParam) add(node.name, node.results[0], StateKind::kParam);
      if (node.op != Op::kState) continue;
      add(node.name, node.results[0], is_cache[static_cast<size_t>(i)] ? StateKind::kKvCache : StateKind::kScale,
          node.attrs.get_or<double>("initial", 0));
    }
    for (const NamedValue& update : graph.updates()) add(update.name, graph.type(update.value), StateKind::kScale);
  }
}

}  // namespace octet
