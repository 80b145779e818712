// One graph on the mesh: the old graph is walked node by node, the op's arrange rule brings operands to layouts that
// its place rule takes, and that gives the layouts of the results. What the ops are is not known here.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "ir/facts.h"
#include "ir/rewrite.h"
#include "passes/relayout.h"
#include "passes/shard_states.h"

namespace octet {

class ShardedGraph final : LayoutRequest {
 public:
  ShardedGraph(const Graph& graph, Program& program, const StateLayouts& states, const Parallel& parallel);
  Graph run();

 private:
  const Layout& layout(Value value) const { return graph().layout(value); }
  StateEntry& state(const std::string& name) {
    return program_.states()[static_cast<size_t>(program_.find_state(name) - program_.states().data())];
  }
  // The gradient that a value, or a sum it is an addend of, becomes.
  void find_targets(Value value, const std::string& state);

  // --- of the node that is arranged
  const Graph& graph() const override { return made_; }
  Node& node() override { return node_; }
  Value old_input(size_t input) const { return old_.node(old_id_).inputs[input]; }
  const Shape& whole_shape(size_t input) const override { return old_.shape(old_input(input)); }
  bool is_rows(size_t input) const override { return is_rows_[old_input(input)]; }
  const AxisList& row_axes() const override { return rows_; }
  bool is_read_by(Op op) const override;
  Layout parameter_layout() const override;
  Layout update_layout(size_t input) const override;
  void redistribute(size_t input, const Layout& want) override {
    node_.inputs[input] = redistribute(node_.inputs[input], want);
  }
  void reduce(size_t input) override { node_.inputs[input] = reduce(node_.inputs[input], old_input(input)); }
  void append(Op op, size_t input) override {
    node_.inputs.push_back(relayout_.emit(op, node_.inputs[input], attrs_for(op, node_.attrs)));
  }

  // --- layouts
  Value redistribute(Value x, const Layout& want) { return relayout_.redistribute(x, want); }
  // Sums become values of the residual stream: copies, or rows of this rank; cp cuts nothing but rows.
  Layout reduced_layout(Value x, Value old_value);
  // Graphs of the model read whole parameters: what is cut over replicas is gathered first, but for gradients, whose
  // parts are added to.
  Value gathered(Value old_value);
  static Layout without_replicas(Layout layout);
  Value reduce(Value x, Value old_value) { return redistribute(x, reduced_layout(x, old_value)); }

  // --- nodes
  void place(NodeId id);
  NodeId arranged(NodeId id, Node node);
  // A sum takes an addend that is of the same sum; else the addend is added when the sum is whole.
  NodeId with_addend(Value addend, size_t input);
  void finish(NodeId id, NodeId made);
  void place_leaf(NodeId id, Node node);
  // Both leaves of a gradient of rows, in graph "apply" of several data ranks.
  void place_row_gradient(NodeId id, const StateEntry& rows);

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
  Graph& made_;
  Relayout relayout_;
  Program& program_;
  const StateLayouts& states_;
  const Parallel& parallel_;
  AxisList rows_;  // that cut the rows of the residual stream
  ValueTable<char> is_rows_;
  NodeId old_id_ = NodeId::kNone;
  Node node_;
  std::unordered_map<Value, std::string, ValueHash> targets_;
  std::unordered_set<Value, ValueHash> parts_;
};

}  // namespace octet
