// The table of fusions: one row a pattern, most members first. docs/numerics.md lists them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace octet {

// A graph with its uses, as the patterns read it.
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

// A node taken into a fusion, under the name its inputs and results carry in the body.
struct FusionMember {
  NodeId node;
  std::string name;
};

struct FusionPattern {
  const char* kind;
  const char* members;  // for documentation: "norm, quantize"
  // The members in node order when `first` starts this pattern, else none.
  std::function<std::vector<FusionMember>(const UseGraph& uses, NodeId first)> match;
};

std::span<const FusionPattern> fusion_patterns();

}  // namespace octet
