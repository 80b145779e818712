// How shard places the nodes of each kind of op.
#include <algorithm>

#include "base/error.h"
#include "ir/facts.h"
#include "passes/sharded_graph.h"

namespace octet {

void ShardedGraph::place_elementwise(const Node& old_node, Node& node) {
  const auto is_full = [&](size_t i) { return old_.shape(old_node.inputs[i]) == old_.shape(old_node.inputs[0]); };
  const bool dropout = node.op == Op::kDropout;
  const size_t operands = dropout ? 1 : node.inputs.size();
  bool alike = true;
  for (size_t i = 1; i < operands; ++i) alike &= is_full(i) && layout(node.inputs[i]) == layout(node.inputs[0]);
  const bool linear = node.op == Op::kAdd || node.op == Op::kSub || node.op == Op::kScale ||
                      (node.op == Op::kCast && dtype_bytes(node.results[0].dtype) >= 4);
  const bool keeps =
      alike && (linear || (node.op == Op::kMaximum && layout(node.inputs[0]).due(Pending::kSum).empty()));
  if (!keeps) {
    for (size_t i = 0; i < operands; ++i) node.inputs[i] = settle(node.inputs[i], old_node.inputs[i]);
    Layout most = layout(node.inputs[0]);
    for (size_t i = 1; i < operands; ++i)
      if (is_full(i) && layout(node.inputs[i]).cuts.size() > most.cuts.size()) most = layout(node.inputs[i]);
    for (size_t i = 0; i < operands; ++i) {
      const int last = old_.shape(old_node.inputs[0]).rank() - 1;
      const bool channels = !is_full(i) && old_.shape(old_node.inputs[i])[0] > 1;
      node.inputs[i] = bring(node.inputs[i], is_full(i) ? most
                                             : channels ? Layout().with_cuts_of(most, last, 0)
                                                        : Layout());
    }
  }
  if (dropout) node.inputs[1] = bring(node.inputs[1], {});
}

void ShardedGraph::place_norm(const Node& old_node, Node& node) {
  const auto& operands = op_info(node.op).operands;
  Value& x = node.inputs[0];
  x = settle(x, old_node.inputs[0]);
  x = bring(x, layout(x).only(0));
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    const bool copies = operands[i] == "weight" || operands[i] == "bias";
    node.inputs[i] = bring(node.inputs[i], copies ? Layout() : layout(x));
  }
}

void ShardedGraph::place_rows_of(const Node& old_node, Node& node) {
  node.inputs[0] = settle(node.inputs[0], old_node.inputs[0]);
  for (size_t i = 1; i < node.inputs.size(); ++i)
    node.inputs[i] = bring(node.inputs[i], layout(node.inputs[0]).moved({0, -1}));
}

void ShardedGraph::set_classes(const Node& old_node, Node& node) {
  if (!layout(node.inputs[0]).cut_axes(1).empty() && !node.attrs.has("classes"))
    node.attrs.set("classes", old_.shape(old_node.inputs[0])[1]);
}

NodeId ShardedGraph::place_loss(NodeId id, Node node) {
  const Node& old_node = old_.node(id);
  place_rows_of(old_node, node);
  set_classes(old_node, node);
  const Layout& logits = layout(node.inputs[0]);
  if (!logits.cut_axes(1).empty() && !node.operand("lse").exists()) {
    const Layout rows = logits.moved({0, -1});
    const Value own = relayout_.emit(Op::kRowLse, node.inputs[0], attrs_for(Op::kRowLse, node.attrs));
    node.inputs.push_back(bring(own, rows));
  }
  return graph().add(std::move(node));
}

void ShardedGraph::place_embedding(const Node& old_node, Node& node) {
  node.inputs[0] = settle(node.inputs[0], old_node.inputs[0]);
  // A table that is there whole is read for this rank's rows alone.
  if (layout(node.inputs[1]).cuts.empty() && is_row_value(old_node.inputs[0]))
    node.inputs[0] = bring(node.inputs[0], Layout().with(0, rows_));
}

void ShardedGraph::place_embedding_grad(NodeId id, const Node& old_node, Node& node) {
  const auto target = targets_.find({id, 0});
  const StateEntry* entry = target != targets_.end() ? program_.find_state(target->second) : nullptr;
  const Layout table = entry != nullptr && !entry->param.empty() ? states_.weight(entry->param) : Layout();
  const AxisList over = table.cut_axes(0);
  Value& dy = node.inputs[1];
  dy = settle(dy, old_node.inputs[1]);
  AxisList rows = layout(dy).cut_axes(0);
  std::erase_if(rows, [&](Axis axis) { return AxisSet(over).has(axis); });
  dy = bring(dy, layout(dy).with(0, rows));
  node.inputs[0] = bring(node.inputs[0], Layout().with(0, rows));
  if (over.empty()) return;
  node.attrs.set("over", print(over));
  node.attrs.set("rows", node.attr<int64_t>("rows") / parallel_.mesh.parts(over));
}

void ShardedGraph::place_heads(const Node& old_node, Node& node) {
  const int64_t head_dim = node.attr<int64_t>("head_dim");
  for (size_t i : {0, 1, 2}) {
    Value& x = node.inputs[i];
    x = settle(x, old_node.inputs[i]);
    const AxisList rows = layout(x).cut_axes(0);
    AxisList axes = layout(x).cut_axes(1);
    if (i == 0 || graph().shape(x)[1] / head_dim % parallel_.mesh.parts(rows) == 0)
      for (Axis axis : rows) axes.push_back(axis);
    x = bring(x, Layout().with(1, axes));
  }
  const Layout q = layout(node.inputs[0]);
  if (node.op == Op::kAttentionGrad)
    for (size_t i : {4, 5, 6}) node.inputs[i] = bring(node.inputs[i], q);
  node.attrs.set("heads", graph().shape(node.inputs[0])[1] / head_dim);
  node.attrs.set("kv_heads", graph().shape(node.inputs[1])[1] / head_dim);
}

void ShardedGraph::place_reshape(const Node& old_node, Node& node) {
  const Layout& x = layout(node.inputs[0]);
  const Shape& from = graph().shape(node.inputs[0]);
  std::vector<int64_t> shape = old_node.attr<std::vector<int64_t>>("shape");
  // The dim of `to` at which what lies `start` apart begins.
  const auto dim_at = [](int64_t start, const std::vector<int64_t>& to, int64_t& other) {
    size_t r = 0;
    for (other = 1; r + 1 < to.size() && start % (other * to[r]) == 0;) other *= to[r++];
    return r;
  };
  std::vector<int64_t> cut_to, starts;
  int64_t before = 1, other = 1;
  for (int d = 0; d < from.rank(); before *= from[d++]) {
    if (x.cut_axes(d).empty()) continue;
    const int64_t start = before * x.outer(d);
    const size_t r = dim_at(start, shape, other);
    const int64_t parts = parallel_.mesh.parts(x.cut_axes(d));
    if (start % other != 0 || shape[r] % (start / other * parts) != 0) {
      node.inputs[0] = bring(node.inputs[0], x.whole(d));
      return place_reshape(old_node, node);
    }
    shape[r] /= parts;
    cut_to.push_back(static_cast<int64_t>(r));
    starts.push_back(start);
  }
  for (size_t i = 0; i < starts.size(); ++i)  // what remains of a dim may look like another
    if (dim_at(starts[i], shape, other) != static_cast<size_t>(cut_to[i])) node.attrs.set("cut_to", cut_to);
  node.attrs.set("shape", shape);
}

void ShardedGraph::place_codes(NodeId id, Node& node) {
  const Node& old_node = old_.node(id);
  node.inputs[0] = settle(node.inputs[0], old_node.inputs[0]);
  if (node.op == Op::kQuantize) {
    const bool parts_of_rows =
        node.attr<std::string>("scaling") == "row" && !layout(node.inputs[0]).cut_axes(1).empty();
    const bool sorted = parts_of_rows && std::ranges::any_of(old_.nodes(), [&](const Node& reader) {
                          return reader.op == Op::kTakeColumns && reader.inputs[0].node == id;
                        });
    if (sorted)
      node.inputs[0] = bring(node.inputs[0], layout(node.inputs[0]).whole(1));
    else if (parts_of_rows)
      node.attrs.set("own_scales", true);
    if (node.inputs.size() > 1) node.inputs[1] = bring(node.inputs[1], {});
  }
}

Value ShardedGraph::bring_gradient(Value x) {
  const Node& leaf = graph().node(x);
  const StateEntry* entry = leaf.op == Op::kState ? program_.find_state(leaf.name) : nullptr;
  return bring(
      x, entry != nullptr && entry->role == StateRole::kGradient ? states_.master(entry->param) : layout(x).settled());
}

void ShardedGraph::place_optimizer(Node& node) {
  const OpFacts& facts = op_facts(node.op);
  const Layout param = layout(node.inputs[0]);
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    const bool scalar = static_cast<int>(i) >= facts.first_scalar && static_cast<int>(i) < facts.first_scalar + 4;
    node.inputs[i] = bring(node.inputs[i], scalar ? Layout() : param);
  }
}

}  // namespace octet
