// One graph on the mesh: the old graph is walked node by node, operands are brought to the layouts that the op's rule
// takes, attributes that are sizes become local ones, and the rule gives the layouts of the results.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "ir/rewrite.h"
#include "passes/relayout.h"
#include "passes/shard_states.h"

namespace octet {

class ShardedGraph {
 public:
  ShardedGraph(const Graph& graph, Program& program, StateLayouts& states, const Parallel& parallel);
  Graph run();

 private:
  Graph& graph() { return rewriter_.graph(); }
  const Layout& layout(Value value) { return graph().layout(value); }
  bool is_row_value(Value old_value) const { return is_rows_[old_value]; }

  // Whether dim 0 of a result is the tokens of the micro-batch.
  bool makes_rows(const Node& node, size_t result) const;
  StateEntry& state(const std::string& name) {
    return program_.states()[static_cast<size_t>(program_.find_state(name) - program_.states().data())];
  }
  // The gradient that a value, or a sum it is an addend of, becomes.
  void find_targets(Value value, const std::string& state);

  // --- layouts
  Value bring(Value x, const Layout& want) { return relayout_.bring(x, want); }
  // Sums become values of the residual stream: copies, or rows of this rank; cp cuts nothing but rows.
  Layout settled(Value x, Value old_value);
  // Graphs of the model read whole parameters: what is cut over replicas is gathered first, but for gradients, whose
  // parts are added to.
  Value gathered(Value old_value);
  static Layout without_replicas(Layout layout);
  Value settle(Value x, Value old_value) { return bring(x, settled(x, old_value)); }

  // --- nodes
  void place(NodeId id);
  NodeId placed(NodeId id, Node node);  // its operands brought to where the op takes them
  void finish(NodeId id, NodeId made);
  void place_leaf(NodeId id, Node node);
  void place_elementwise(const Node& old_node, Node& node);
  void place_norm(const Node& old_node, Node& node);
  // Operands of a loss or of its gradient that belong to rows.
  void place_rows_of(const Node& old_node, Node& node);
  void set_classes(const Node& old_node, Node& node);
  // The log-sum-exp of all classes first: a float a row is exchanged.
  NodeId place_loss(NodeId id, Node node);
  void place_embedding(const Node& old_node, Node& node);
  void place_embedding_grad(NodeId id, const Node& old_node, Node& node);
  // Heads of tp, then of what cuts rows, whose ranks exchange rows for heads; a key head that they share is gathered.
  void place_heads(const Node& old_node, Node& node);
  void place_reshape(const Node& old_node, Node& node);
  // A part of a row has a scale of its own, unless the columns that readers take lie on several ranks.
  void place_codes(NodeId id, Node& node);
  Value bring_gradient(Value x);
  void place_optimizer(Node& node);

  // --- products
  struct Side {
    size_t input;
    int outer, inner;  // the dim that the result has, and the contraction
  };
  NodeId place_product(NodeId id, Node node);
  // A sum takes a c that is of the same sum; else c is added when the sum is whole.
  NodeId add_to_product(const Node& old_node, Node node, const Node& alone, Value c, size_t c_input);
  Value settle_operand(Value x, Value old_value);
  // One axis may cut rows of a, columns of b, or the contraction of both. Weights stay where they are: what gives way
  // has tokens along the dim that the axis cuts; what is there whole takes its part.
  void agree(Node& node, const Side& a, const Side& b, Axis axis, bool wgrad);

  // --- gradients
  // Whether a value is this replica's part of a gradient.
  bool is_part(Value old_value) const { return parts_.contains(old_value); }
  // A node whose addend `part` is one: the rest is made whole, reduced and scattered over the replicas, then added.
  void place_sum(NodeId id, Node node, size_t part);
  // A gradient of this replica in the layout of the state that it becomes, or is added to.
  Value scattered(Value x, const Layout& state);

  void place_update(const NamedValue& update);
  // Of a state between graphs or stages: activations and gradients of the residual stream lie as this does, what is
  // saved as it is made, gradients of the other stage as this one's.
  Layout between(const StateEntry& entry, const Layout& made) const;

  const Graph& old_;
  Rewriter rewriter_;
  Relayout relayout_;
  Program& program_;
  StateLayouts& states_;
  const Parallel& parallel_;
  AxisList rows_;        // that cut the rows of the residual stream
  int64_t tokens_ = -1;  // rows of the whole micro-batch
  ValueTable<char> is_rows_;
  std::unordered_map<Value, std::string, ValueHash> targets_;
  std::unordered_set<Value, ValueHash> parts_;
};

}  // namespace octet
