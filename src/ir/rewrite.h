// The one mechanism behind graph-to-graph passes: walk the old graph in order, copy or replace each node into a new
// one.
#pragma once

#include <functional>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"

namespace octet {

class Rewriter {
 public:
  explicit Rewriter(const Graph& old_graph);

  const Graph& old_graph() const { return old_; }
  Graph& graph() { return new_; }
  Builder& builder() { return builder_; }

  Value map(Value old_value) const;  // the new value standing for an old one; none maps to none
  bool is_mapped(Value old_value) const { return old_value.exists() && map_[old_value].exists(); }
  Node mapped(NodeId old_id) const;  // the old node with mapped inputs, to be changed and added
  // Later uses of an old value read a new one; of all results of an old node, those of a node that this adds.
  void set(Value old_value, Value new_value) { map_[old_value] = new_value; }
  void set_results(NodeId old_id, NodeId new_id);
  NodeId replace(NodeId old_id, Node node);
  NodeId copy(NodeId old_id);

  // Copies outputs and updates (those not yet re-made), removes dead nodes, and returns the new graph.
  Graph finish();

 private:
  const Graph& old_;
  Graph new_;
  Builder builder_;
  ValueTable<Value> map_;
};

// Drops nodes no output or update depends on (inputs stay). Returns whether anything went.
bool remove_dead_nodes(Graph& graph);

// Merges nodes that compute the same value: same op, inputs, attrs, types and phase (a recomputed value stays apart
// from the saved one; dropouts differ in their key). Returns "changed".
bool merge_common_nodes(Graph& graph);

// Walks the graph: `replace(rewriter, id)` says whether it did something in place of the node; else it is copied.
// Returns whether anything was replaced.
template <typename Replace>
bool rewrite(Graph& graph, const Replace& replace) {
  Rewriter rewriter(graph);
  bool changed = false;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const bool replaced = replace(rewriter, NodeId{i});
    if (!replaced) rewriter.copy(NodeId{i});
    changed |= replaced;
  }
  if (changed) graph = rewriter.finish();
  return changed;
}

// The body of a fusion of this graph, to be filled: its mesh and stage. An input of it, with the type and layout of a
// value of the graph.
Graph empty_body(const Graph& graph);
Value add_body_input(Graph& body, const Graph& graph, Value value, std::string name);

// Products that take an addend (operand c) move down to the sums that read them: of every kAdd, that which `product_of`
// gives, whose other operand becomes the addend; none: the sum stays.
bool fold_into_products(Graph& graph, const std::function<Value(const Node& sum)>& product_of);

// A graph with its uses: what passes that look for patterns read.
class UseGraph {
 public:
  explicit UseGraph(const Graph& graph);
  const Graph& graph() const { return graph_; }
  const Node& node(NodeId id) const { return graph_.node(id); }
  // Nodes that read this value, in order, each once.
  const std::vector<NodeId>& users(Value value) const { return users_[value]; }
  bool is_output(Value value) const { return outputs_[value]; }  // or an update

 private:
  const Graph& graph_;
  ValueTable<std::vector<NodeId>> users_;
  ValueTable<bool> outputs_;
};

}  // namespace octet
