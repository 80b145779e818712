// How shard places products and gradients.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ir/facts.h"
#include "passes/sharded_graph.h"

namespace octet {

NodeId ShardedGraph::place_product(NodeId id, Node node) {
  const Node& old_node = old_.node(id);
  const auto b_input = static_cast<size_t>(operand_index(node.op, "b"));
  const bool trans_a = node.attr<bool>("trans_a"), trans_b = node.attr<bool>("trans_b");
  const Side a{0, trans_a ? 1 : 0, trans_a ? 0 : 1}, b{b_input, trans_b ? 0 : 1, trans_b ? 1 : 0};
  for (size_t i : {a.input, b.input}) node.inputs[i] = settle_operand(node.inputs[i], old_node.inputs[i]);
  const bool wgrad = node.attrs.has("role") && node.attr<std::string>("role") == "wgrad";
  for (Axis axis : kAllAxes) agree(node, a, b, axis, wgrad);
  if (node.op == Op::kScaledMatmul) {
    for (const auto& [side, key] : {std::pair{a, "scaling_a"}, {b, "scaling_b"}}) {
      const ScaleLayout scaling = parse_scale_layout(node.attr<std::string>(key));
      Value& scales = node.inputs[side.input + 1];
      if (layout(scales).due(Pending::kNever).empty())  // else each part's own
        scales = bring(scales, scales_layout(layout(node.inputs[side.input]), scaling));
    }
  }
  if (node.op == Op::kScaledMatmul && node.operand("b_zero").exists()) {
    Value& zero = node.inputs[static_cast<size_t>(operand_index(node.op, "b_zero"))];
    zero = bring(zero, layout(node.inputs[b_input + 1]));
  }
  if (!node.operand("c").exists()) return graph().add(std::move(node));
  const auto c_input = static_cast<size_t>(operand_index(node.op, "c"));
  const Value c = std::exchange(node.inputs[c_input], Value::none());
  Node alone = node;
  if (!alone.attrs.has("to")) alone.attrs.set("to", std::string(dtype_name(node.results[0].dtype)));
  return add_to_product(old_node, std::move(node), alone, c, c_input);
}

NodeId ShardedGraph::add_to_product(const Node& old_node, Node node, const Node& alone, Value c, size_t c_input) {
  const Value old_c = old_node.inputs[c_input];
  const bool full = old_.shape(old_c) == old_node.results[0].shape;
  const NodeId made = graph().add(alone);
  const Layout y = layout({made, 0});
  if (full ? layout(c) == y : !y.is_pending()) {
    node.inputs[c_input] = full ? c : bring(c, Layout().with_cuts_of(y, 1, 0));
    return graph().add(std::move(node));  // the trial is dead
  }
  const Value sum = bring({made, 0}, is_row_value(old_c) && full ? settled({made, 0}, old_c) : y.settled());
  Node add{.op = Op::kAdd, .inputs = {sum, c}, .name = node.name, .layer = node.layer, .phase = node.phase};
  add.inputs[1] = full ? bring(settle(c, old_c), layout(sum)) : bring(c, Layout().with_cuts_of(layout(sum), 1, 0));
  return graph().add(std::move(add));
}

void ShardedGraph::place_sum(NodeId id, Node node, size_t part) {
  const Value c = node.inputs[part];
  Value rest;
  if (node.op == Op::kAdd) {
    rest = node.inputs[1 - part];
  } else {
    node.inputs[part] = Value::none();
    rest = {placed(id, std::move(node)), 0};
  }
  const Node& old_node = old_.node(id);
  Node add{.op = Op::kAdd, .name = old_node.name, .layer = old_node.layer, .phase = old_node.phase};
  add.inputs = {scattered(rest, layout(c)), c};
  rewriter_.set({id, 0}, {graph().add(std::move(add)), 0});
  parts_.insert({id, 0});
}

Value ShardedGraph::scattered(Value x, const Layout& state) {
  AxisList over = (state.cut_axes() & kReplicas).list();  // what is made on all context ranks alike is no sum of theirs
  std::erase_if(over, [&](Axis axis) { return axis != Axis::kData && !layout(x).due(Pending::kSum).has(axis); });
  const AxisSet due = (state.due(Pending::kSum) | over) - Axis::kData;
  x = bring(x, without_replicas(state).with_due(Pending::kSum, due));
  if (!over.empty()) x = relayout_.emit(Op::kReduceScatter, x, {{"axis", int64_t{0}}, {"over", print(over)}});
  return bring(x, layout_in(old_.role(), state));
}

Value ShardedGraph::settle_operand(Value x, Value old_value) {
  return layout(x).is_pending() || is_row_value(old_value) ? settle(x, old_value) : x;
}

void ShardedGraph::agree(Node& node, const Side& a, const Side& b, Axis axis, bool wgrad) {
  const auto cuts = [&](const Side& side, int dim) {
    return AxisSet(layout(node.inputs[side.input]).cut_axes(dim)).has(axis);
  };
  const auto gather = [&](const Side& side, int dim) {
    AxisList axes = layout(node.inputs[side.input]).cut_axes(dim);
    std::erase(axes, axis);
    node.inputs[side.input] = bring(node.inputs[side.input], layout(node.inputs[side.input]).with(dim, axes));
  };
  const auto take = [&](const Side& side, int dim) {
    node.inputs[side.input] = bring(node.inputs[side.input], layout(node.inputs[side.input]).cut(dim, {axis}));
  };
  for (int round = 0; round < 3; ++round) {
    const bool m = cuts(a, a.outer), ak = cuts(a, a.inner), n = cuts(b, b.outer), bk = cuts(b, b.inner);
    if (ak && bk) return;
    if (ak && n) {
      gather(a, a.inner);
    } else if (ak) {
      take(b, b.inner);
    } else if (bk && m) {
      wgrad ? gather(b, b.inner) : gather(a, a.outer);
    } else if (bk) {
      take(a, a.inner);
    } else if (m && n) {
      gather(a, a.outer);
    } else {
      return;
    }
  }
}

Layout ShardedGraph::between(const StateEntry& entry, const Layout& made) const {
  if (entry.role == StateRole::kSaved) return made;
  return entry.param.empty() ? Layout().with(0, rows_) : program_.find_state(entry.param, StateRole::kGradient)->layout;
}

void ShardedGraph::place_update(const NamedValue& update) {
  StateEntry& entry = state(update.name);
  Value value = rewriter_.map(update.value);
  if (entry.role == StateRole::kSaved || entry.role == StateRole::kTransfer) {
    entry.layout = between(entry, layout(value));
  } else if (runs_per_micro_batch(old_.role()) && entry.role == StateRole::kGradient) {
    if (old_.role() == GraphRole::kTrain) {
      const Layout& want = states_.gradient(entry.param);
      AxisSet sums = layout(value).due(Pending::kSum);
      if (parallel_.mesh[Axis::kData] > 1) sums = sums | Axis::kData;
      entry.layout = want.with_due(Pending::kSum, sums - (want.cut_axes() & kReplicas));
    }
    if (!is_part(update.value)) value = scattered(value, entry.layout);
  } else if (runs_per_micro_batch(old_.role()) &&
             (entry.role == StateRole::kBuffer || entry.role == StateRole::kAmax)) {
    entry.layout = layout(value);
    AxisSet& due = entry.layout.due(entry.role == StateRole::kAmax ? Pending::kMax : Pending::kSum);
    if (parallel_.mesh[Axis::kData] > 1) due = due | Axis::kData;
  }
  rewriter_.set(update.value, bring(value, layout_in(old_.role(), entry.layout)));
}

}  // namespace octet
