#include "passes/use_graph.h"

namespace octet {

UseGraph::UseGraph(const Graph& graph) : graph_(graph) {
  for (const Node& node : graph.nodes()) {
    users_.emplace_back(node.results.size());
    outputs_.emplace_back(node.results.size(), false);
  }
  for (int32_t i = 0; i < graph.size(); ++i) {
    for (Value input : graph.node(NodeId{i}).inputs) {
      if (!input.exists()) continue;
      auto& list = users_[static_cast<size_t>(index(input.node))][static_cast<size_t>(input.result)];
      if (list.empty() || list.back() != NodeId{i}) list.push_back(NodeId{i});
    }
  }
  for (const auto* named : {&graph.outputs(), &graph.updates()}) {
    for (const NamedValue& entry : *named) {
      outputs_[static_cast<size_t>(index(entry.value.node))][static_cast<size_t>(entry.value.result)] = true;
    }
  }
}

const std::vector<NodeId>& UseGraph::users(Value value) const {
  return users_[static_cast<size_t>(index(value.node))][static_cast<size_t>(value.result)];
}

}  // namespace octet
