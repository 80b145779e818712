#include "ir/rewrite.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "ir/text.h"

namespace octet {
namespace {

// Phases stay apart: a recomputed value must not become the saved one it replaces.
bool same_computation(const Node& a, const Node& b) {
  return a.op == b.op && a.phase == b.phase && a.inputs == b.inputs && a.attrs == b.attrs && a.results == b.results &&
         a.layouts == b.layouts && a.body == b.body;
}

}  // namespace

Rewriter::Rewriter(const Graph& old_graph)
    : old_(old_graph), new_(old_graph.name(), old_graph.role()), builder_(new_), map_(old_graph) {
  new_.set_stage(old_.stage());
  new_.set_mesh(old_.mesh());
}

Value Rewriter::map(Value old_value) const {
  if (!old_value.exists()) return old_value;
  check(is_mapped(old_value), ErrorCode::kInternal, "rewrite of {}: result {} of {} has no new value yet", old_.name(),
        old_value.result, describe(old_, old_value.node));
  return map_[old_value];
}

NodeId Rewriter::copy(NodeId old_id) {
  const Node& old_node = old_.node(old_id);
  if (is_named_leaf(old_node.op)) {
    Value known = new_.find_leaf(old_node.op, old_node.name);  // a pass may have asked for it first
    if (known.exists()) {
      check(new_.type(known) == old_node.results[0], ErrorCode::kInternal, "rewrite of {}: {} was made as {}",
            old_.name(), describe(old_, old_id), to_string(new_.type(known)));
      set({old_id, 0}, known);
      return known.node;
    }
  }
  return replace(old_id, mapped(old_id));
}

Node Rewriter::mapped(NodeId old_id) const {
  Node node = old_.node(old_id);
  for (Value& input : node.inputs) input = map(input);
  return node;
}

void Rewriter::set_results(NodeId old_id, NodeId new_id) {
  for (int32_t r = 0; r < static_cast<int32_t>(old_.node(old_id).results.size()); ++r) set({old_id, r}, {new_id, r});
}

NodeId Rewriter::replace(NodeId old_id, Node node) {
  const NodeId id = new_.add(std::move(node));
  set_results(old_id, id);
  return id;
}

Graph Rewriter::finish() {
  auto carry = [&](const std::vector<NamedValue>& from, std::vector<NamedValue>& to) {
    std::set<std::string> made;
    for (const NamedValue& entry : to) made.insert(entry.name);
    std::vector<NamedValue> carried;
    for (const NamedValue& entry : from) {
      if (!made.contains(entry.name)) carried.push_back({entry.name, map(entry.value)});
    }
    to.insert(to.begin(), carried.begin(), carried.end());
  };
  carry(old_.outputs(), new_.outputs());
  carry(old_.updates(), new_.updates());
  remove_dead_nodes(new_);
  return std::move(new_);
}

Graph empty_body(const Graph& graph) {
  Graph body("body");
  body.set_mesh(graph.mesh());
  body.set_stage(graph.stage());
  return body;
}

Value add_body_input(Graph& body, const Graph& graph, Value value, std::string name) {
  Node leaf{.op = Op::kInput, .results = {graph.type(value)}, .name = std::move(name)};
  if (graph.mesh().ranks() > 1) leaf.layouts = {graph.layout(value)};
  return {body.add(std::move(leaf)), 0};
}

bool remove_dead_nodes(Graph& graph) {
  std::vector<bool> live(static_cast<size_t>(graph.size()), false);
  auto mark = [&](Value value) {
    if (value.exists()) live[slot(value.node)] = true;
  };
  for (const NamedValue& output : graph.outputs()) mark(output.value);
  for (const NamedValue& update : graph.updates()) mark(update.value);
  bool all = true;
  for (int32_t i = graph.size() - 1; i >= 0; --i) {
    const Node& node = graph.node(NodeId{i});
    if (node.op == Op::kInput) live[static_cast<size_t>(i)] = true;
    if (!live[static_cast<size_t>(i)]) {
      all = false;
      continue;
    }
    for (Value input : node.inputs) mark(input);
  }
  if (all) return false;
  graph.keep_nodes(live);
  return true;
}

bool merge_common_nodes(Graph& graph) {
  std::unordered_multimap<uint64_t, NodeId> seen;
  seen.reserve(static_cast<size_t>(graph.size()));
  std::vector<NodeId> stands_for(static_cast<size_t>(graph.size()));
  bool changed = false;
  auto replace = [&](Value& value) {
    if (value.exists()) value.node = stands_for[slot(value.node)];
  };
  for (int32_t i = 0; i < graph.size(); ++i) {
    NodeId id{i};
    Node& node = graph.mutable_node(id);
    stands_for[static_cast<size_t>(i)] = id;
    for (Value& input : node.inputs) replace(input);
    if (is_named_leaf(node.op)) continue;
    const uint64_t hash = computation_hash(node);
    auto [first, last] = seen.equal_range(hash);
    auto twin =
        std::find_if(first, last, [&](const auto& entry) { return same_computation(graph.node(entry.second), node); });
    if (twin == last) {
      seen.emplace(hash, id);
    } else {
      stands_for[static_cast<size_t>(i)] = twin->second;
      changed = true;
    }
  }
  if (!changed) return false;
  for (NamedValue& output : graph.outputs()) replace(output.value);
  for (NamedValue& update : graph.updates()) replace(update.value);
  remove_dead_nodes(graph);
  return true;
}

bool fold_into_products(Graph& graph, const std::function<Value(const Node& sum)>& product_of) {
  std::vector<Value> products(graph.nodes().size());  // by sum
  std::vector<bool> moved(graph.nodes().size(), false);
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    const Value product = node.op == Op::kAdd ? product_of(node) : Value::none();
    if (!product.exists()) continue;
    products[slot(NodeId{i})] = product;
    moved[slot(product.node)] = true;
  }
  if (std::ranges::find(moved, true) == moved.end()) return false;
  return rewrite(graph, [&](Rewriter& rewriter, NodeId id) {
    const Value product = products[slot(id)];
    if (!product.exists()) return bool{moved[slot(id)]};
    const Node& sum = graph.node(id);
    Node folded = rewriter.mapped(product.node);
    folded.inputs.resize(static_cast<size_t>(operand_index(folded.op, "c")), Value::none());
    folded.inputs.push_back(rewriter.map(sum.inputs[sum.inputs[0] == product ? 1 : 0]));
    rewriter.replace(id, std::move(folded));
    return true;
  });
}

UseGraph::UseGraph(const Graph& graph) : graph_(graph), users_(graph), outputs_(graph) {
  for (int32_t i = 0; i < graph.size(); ++i) {
    for (Value input : graph.node(NodeId{i}).inputs) {
      if (!input.exists()) continue;
      std::vector<NodeId>& list = users_[input];
      if (list.empty() || list.back() != NodeId{i}) list.push_back(NodeId{i});
    }
  }
  for (const auto* named : {&graph.outputs(), &graph.updates()}) {
    for (const NamedValue& entry : *named) outputs_[entry.value] = true;
  }
}

}  // namespace octet
