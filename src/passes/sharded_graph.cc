#include "passes/sharded_graph.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "passes/passes.h"

namespace octet {

ShardedGraph::ShardedGraph(const Graph& graph, Program& program, const StateLayouts& states, const Parallel& parallel)
    : old_(graph),
      rewriter_(graph),
      made_(rewriter_.graph()),
      relayout_(made_),
      program_(program),
      states_(states),
      parallel_(parallel),
      is_rows_(batch_rows(graph)) {
  made_.set_mesh(parallel.mesh);
  made_.set_stage(Stage::kSharded);
  if (parallel.mesh[Axis::kContext] > 1) rows_.push_back(Axis::kContext);
  if (parallel.sequence && parallel.mesh[Axis::kTensor] > 1) rows_.push_back(Axis::kTensor);
  if (!runs_per_micro_batch(graph.role())) return;
  for (const NamedValue& update : graph.updates())
    if (program.find_state(update.name)->role == StateRole::kGradient) find_targets(update.value, update.name);
}

Graph ShardedGraph::run() {
  for (int32_t i = 0; i < old_.size(); ++i) place(NodeId{i});
  for (const NamedValue& output : old_.outputs())
    rewriter_.set(output.value, redistribute(rewriter_.map(output.value), {}));
  for (const NamedValue& update : old_.updates()) place_update(update);
  return rewriter_.finish();
}

void ShardedGraph::find_targets(Value value, const std::string& state) {
  targets_[value] = state;
  const Node& node = old_.node(value);
  for (const size_t i : addends(old_, node)) find_targets(node.inputs[i], state);
}

Layout ShardedGraph::reduced_layout(Value x, Value old_value) {
  Layout want = layout(x).without_pending();
  if (!is_rows_[old_value]) return want;
  bool moved = false;
  for (int d = 1; d < graph().shape(x).rank(); ++d) {
    AxisList axes = want.cut_axes(d);
    if (std::erase(axes, Axis::kContext) == 0) continue;
    want = want.with(d, axes, want.outer(d));
    moved = true;
  }
  if (layout(x).is_pending()) {
    AxisList rows = rows_;
    std::erase_if(rows, [&](Axis axis) { return want.whole(0).cut_axes().has(axis); });
    return want.with(0, rows);
  }
  return moved ? want.with(0, {Axis::kContext}) : want;
}

Value ShardedGraph::gathered(Value old_value) {
  const Value x = rewriter_.map(old_value);
  if (!x.exists() || !is_model_graph(old_) || is_part(old_value)) return x;
  const Node& leaf = old_.node(old_value);
  if ((leaf.op != Op::kParam && leaf.op != Op::kState) || state(leaf.name).param.empty()) return x;
  const Layout whole = without_replicas(layout(x));
  check(whole == layout(x) || state(leaf.name).role != StateRole::kGradient, ErrorCode::kInternal,
        "shard: {} is read by what does not add to it", leaf.name);
  return redistribute(x, whole);
}

Layout ShardedGraph::without_replicas(Layout layout) {
  std::erase_if(layout.cuts, [](const Layout::Cut& cut) { return kReplicas.has(cut.axis); });
  return layout;
}

void ShardedGraph::place(NodeId id) {
  const Node& old_node = old_.node(id);
  relayout_.set_phase(old_node.phase);
  Node node = old_node;
  for (Value& input : node.inputs) input = gathered(input);
  if (op_info(node.op).max_inputs == 0) return place_leaf(id, std::move(node));
  for (const size_t i : addends(old_, old_node))
    if (is_part(old_node.inputs[i])) return place_sum(id, std::move(node), i);
  finish(id, arranged(id, std::move(node)));
}

bool ShardedGraph::is_read_by(Op op) const {
  return std::ranges::any_of(old_.nodes(), [&](const Node& reader) {
    return reader.op == op && std::ranges::find(reader.inputs, Value{old_id_, 0}) != reader.inputs.end();
  });
}

Layout ShardedGraph::parameter_layout() const {
  const auto target = targets_.find({old_id_, 0});
  const StateEntry* entry = target != targets_.end() ? program_.find_state(target->second) : nullptr;
  return entry != nullptr && !entry->param.empty() ? states_.weight(entry->param) : Layout();
}

Layout ShardedGraph::update_layout(size_t input) const {
  const Value x = node_.inputs[input];
  const Node& leaf = graph().node(x);
  const StateEntry* entry = leaf.op == Op::kState ? program_.find_state(leaf.name) : nullptr;
  return entry != nullptr && entry->role == StateRole::kGradient ? states_.master(entry->param)
                                                                 : layout(x).without_pending();
}

NodeId ShardedGraph::arranged(NodeId id, Node node) {
  const OpFacts& facts = op_facts(node.op);
  check(facts.layouts.arrange != nullptr, ErrorCode::kInvalidArgument,
        "shard: {} is of a graph that is sharded already", describe(old_, id));
  const size_t c = facts.addends.size() == 1 ? static_cast<size_t>(facts.addends[0]) : node.inputs.size();
  const Value addend = c < node.inputs.size() ? std::exchange(node.inputs[c], Value::none()) : Value::none();
  old_id_ = id, node_ = std::move(node);
  facts.layouts.arrange(*this);
  return addend.exists() ? with_addend(addend, c) : made_.add(std::move(node_));
}

NodeId ShardedGraph::with_addend(Value c, size_t c_input) {
  const Value old_c = old_input(c_input);
  const bool full = old_.shape(old_c) == old_.node(old_id_).results[0].shape;
  Node alone = node_;
  if (find_attr(alone.op, "to") != nullptr && !alone.attrs.has("to"))
    alone.attrs.set("to", std::string(dtype_name(node_.results[0].dtype)));
  const NodeId made = made_.add(std::move(alone));
  const Layout y = layout({made, 0});
  if (full ? layout(c) == y : !y.is_pending()) {
    node_.inputs[c_input] = full ? c : redistribute(c, Layout().with_cuts_of(y, 1, 0));
    return made_.add(std::move(node_));  // the trial is dead
  }
  const Value sum =
      redistribute({made, 0}, is_rows_[old_c] && full ? reduced_layout({made, 0}, old_c) : y.without_pending());
  Node add{.op = Op::kAdd, .inputs = {sum, c}, .name = node_.name, .layer = node_.layer, .phase = node_.phase};
  add.inputs[1] =
      full ? redistribute(reduce(c, old_c), layout(sum)) : redistribute(c, Layout().with_cuts_of(layout(sum), 1, 0));
  return made_.add(std::move(add));
}

void ShardedGraph::finish(NodeId id, NodeId made) {
  for (int32_t r = 0; r < static_cast<int32_t>(old_.node(id).results.size()); ++r) {
    const Value value{made, r};
    const Shape whole = octet::whole_shape(graph().shape(value), layout(value), parallel_.mesh);
    check(whole == old_.shape({id, r}) || !layout(value).pending_axes(Pending::kNever).empty(), ErrorCode::kInternal,
          "shard: result {} of {} is {}, of {}", r, describe(old_, id), print(graph().type(value), layout(value)),
          to_string(old_.type({id, r})));
    rewriter_.set({id, r}, value);
  }
}

// The lists of all data ranks, one behind the other: rows that several looked up become one.
void ShardedGraph::place_row_gradient(NodeId id, const StateEntry& rows) {
  const int64_t capacity = old_.node(id).results[0].shape[0];
  std::array<Value, 2> gathered;
  for (const int32_t part : {kGradientRows, kGradientIds}) {
    const std::string& name = program_.find_state(rows.param, StateRole::kGradient, part)->name;
    const Value known = old_.find_leaf(Op::kState, name);
    check(known.exists(), ErrorCode::kInternal, "shard: graph {} reads {} without its ids", old_.name(), rows.name);
    Node leaf = old_.node(known);
    leaf.layouts = {rows.layout};
    gathered[static_cast<size_t>(part)] = redistribute({made_.add(std::move(leaf)), 0}, {});
  }
  const NodeId list = made_.add({.op = Op::kCoalesceRows,
                                 .inputs = {gathered[kGradientIds], gathered[kGradientRows]},
                                 .attrs = {{"capacity", capacity}},
                                 .name = rows.name,
                                 .phase = old_.node(id).phase});
  for (const int32_t part : {kGradientRows, kGradientIds}) {
    const std::string& name = program_.find_state(rows.param, StateRole::kGradient, part)->name;
    rewriter_.set(old_.find_leaf(Op::kState, name), {list, part == kGradientRows ? 1 : 0});
  }
}

void ShardedGraph::place_leaf(NodeId id, Node node) {
  if (const StateEntry* entry = node.op == Op::kState ? program_.find_state(node.name) : nullptr;
      entry != nullptr && is_row_gradient(*entry) && !runs_per_micro_batch(old_.role()) && !entry->layout.copies()) {
    if (!rewriter_.is_mapped({id, 0})) place_row_gradient(id, *entry);
    return;
  }
  Layout at;
  if (node.op == Op::kParam || node.op == Op::kState) {
    StateEntry& entry = state(node.name);
    if (entry.role == StateRole::kTransfer) entry.layout = between(entry, {});
    at = layout_in(old_.role(), entry);
    if (targets_.contains({id, 0}) && at != without_replicas(at)) parts_.insert({id, 0});
  } else if (is_rows_[{id, 0}] && parallel_.mesh[Axis::kContext] > 1) {
    at = at.cut(0, {Axis::kContext});
  }
  for (const Layout::Cut& cut : at.cuts) {
    int64_t& dim = node.results[0].shape[cut.dim];
    check(dim % parallel_.mesh[cut.axis] == 0, ErrorCode::kInvalidArgument,
          "parallel: dim {} of {} is {}, which does not divide into {} parts along {}", cut.dim, node.name, dim,
          parallel_.mesh[cut.axis], axis_name(cut.axis));
    dim /= parallel_.mesh[cut.axis];
  }
  node.layouts = {at};
  finish(id, made_.add(std::move(node)));
}

void ShardedGraph::place_sum(NodeId id, Node node, size_t part) {
  const Value c = node.inputs[part];
  Value rest;
  if (node.op == Op::kAdd) {
    rest = node.inputs[1 - part];
  } else {
    node.inputs[part] = Value::none();
    rest = {arranged(id, std::move(node)), 0};
  }
  const Node& old_node = old_.node(id);
  Node add{.op = Op::kAdd, .name = old_node.name, .layer = old_node.layer, .phase = old_node.phase};
  add.inputs = {scattered(rest, layout(c)), c};
  rewriter_.set({id, 0}, {made_.add(std::move(add)), 0});
  parts_.insert({id, 0});
}

Value ShardedGraph::scattered(Value x, const Layout& state) {
  AxisList over = (state.cut_axes() & kReplicas).list();  // what is made on all context ranks alike is no sum of theirs
  std::erase_if(over,
                [&](Axis axis) { return axis != Axis::kData && !layout(x).pending_axes(Pending::kSum).has(axis); });
  const AxisSet due = (state.pending_axes(Pending::kSum) | over) - Axis::kData;
  x = redistribute(x, without_replicas(state).with_pending(Pending::kSum, due));
  if (!over.empty()) x = relayout_.emit(Op::kReduceScatter, x, {{"axis", int64_t{0}}, {"over", print(over)}});
  return redistribute(x, layout_in(old_.role(), state));
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
  } else if (runs_per_micro_batch(old_.role()) && entry.role == StateRole::kGradient && !is_row_gradient(entry)) {
    if (old_.role() == GraphRole::kTrain) {
      const Layout& want = states_.gradient(entry.param);
      AxisSet sums = layout(value).pending_axes(Pending::kSum);
      if (parallel_.mesh[Axis::kData] > 1) sums = sums | Axis::kData;
      entry.layout = want.with_pending(Pending::kSum, sums - (want.cut_axes() & kReplicas));
    }
    if (!is_part(update.value)) value = scattered(value, entry.layout);
  } else if (runs_per_micro_batch(old_.role()) &&
             (entry.role == StateRole::kBuffer || entry.role == StateRole::kAmax)) {
    if (entry.role == StateRole::kBuffer) {  // sums of maxima are of whole ones
      Layout added = layout(value);
      added.pending_axes(Pending::kMax) = added.pending_axes(Pending::kLse) = {};
      value = redistribute(value, added);
    }
    entry.layout = layout(value);
    AxisSet& due = entry.layout.pending_axes(entry.role == StateRole::kAmax ? Pending::kMax : Pending::kSum);
    if (parallel_.mesh[Axis::kData] > 1) due = due | Axis::kData;
  }
  rewriter_.set(update.value, redistribute(value, layout_in(old_.role(), entry)));
}

}  // namespace octet
