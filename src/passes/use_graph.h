// A graph with its uses: what passes that look for patterns read.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace octet {

class UseGraph {
 public:
  explicit UseGraph(const Graph& graph);
  const Graph& graph() const { return graph_; }
  const Node& node(NodeId id) const { return graph_.node(id); }
  // Nodes that read this value, in order, each once.
  const std::vector<NodeId>& users(Value value) const;
  bool is_output(Value value) const {
    return outputs_.at(static_cast<size_t>(index(value.node))).at(static_cast<size_t>(value.result));
  }

 private:
  const Graph& graph_;
  std::vector<std::vector<std::vector<NodeId>>> users_;  // [node][result]
  std::vector<std::vector<bool>> outputs_;               // [node][result]: is an output or update
};

}  // namespace octet
