#include "ir/rewrite.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/error.h"

namespace octet {
namespace {

bool is_named_leaf(Op op) { return op == Op::kInput || op == Op::kParam || op == Op::kState; }

size_t mix(size_t seed, size_t value) { return seed ^ (value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2)); }

struct HashAttr {
  size_t operator()(const std::string& text) const { return std::hash<std::string>()(text); }
  template <typename T>
  size_t operator()(const std::vector<T>& list) const {
    size_t seed = list.size();
    for (const T& item : list) seed = mix(seed, std::hash<T>()(item));
    return seed;
  }
  template <typename T>
  size_t operator()(T value) const {
    return std::hash<T>()(value);
  }
};

size_t hash_node(const Node& node) {
  size_t seed = static_cast<size_t>(node.op);
  for (Value input : node.inputs) seed = mix(seed, ValueHash()(input));
  for (const auto& [key, value] : node.attrs.entries()) seed = mix(seed, std::visit(HashAttr(), value));
  return seed;
}

// Phases stay apart: a recomputed value must not become the saved one it replaces.
bool same_computation(const Node& a, const Node& b) {
  return a.op == b.op && a.phase == b.phase && a.inputs == b.inputs && a.attrs == b.attrs && a.results == b.results &&
         a.layouts == b.layouts && a.body == b.body;
}

}  // namespace

Rewriter::Rewriter(const Graph& old_graph) : old_(old_graph), new_(old_graph.name(), old_graph.role()), builder_(new_) {
  new_.set_stage(old_.stage());
  new_.set_mesh(old_.mesh());
  map_.reserve(static_cast<size_t>(old_.size()));
  for (const Node& node : old_.nodes()) map_.emplace_back(node.results.size());
}

bool Rewriter::is_mapped(Value old_value) const {
  return old_value.exists() &&
         map_[static_cast<size_t>(index(old_value.node))][static_cast<size_t>(old_value.result)].exists();
}

Value Rewriter::map(Value old_value) const {
  if (!old_value.exists()) return old_value;
  check(is_mapped(old_value), ErrorCode::kInternal, "rewrite of {}: result {} of {} has no new value yet", old_.name(),
        old_value.result, describe(old_, old_value.node));
  return map_[static_cast<size_t>(index(old_value.node))][static_cast<size_t>(old_value.result)];
}

void Rewriter::set(Value old_value, Value new_value) {
  map_[static_cast<size_t>(index(old_value.node))][static_cast<size_t>(old_value.result)] = new_value;
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
  Node node = old_node;
  for (Value& input : node.inputs) input = map(input);
  NodeId id = new_.add(std::move(node));
  for (int32_t r = 0; r < static_cast<int32_t>(old_node.results.size()); ++r) set({old_id, r}, {id, r});
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

bool remove_dead_nodes(Graph& graph) {
  std::vector<bool> live(static_cast<size_t>(graph.size()), false);
  auto mark = [&](Value value) {
    if (value.exists()) live[static_cast<size_t>(index(value.node))] = true;
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
  std::unordered_multimap<size_t, NodeId> seen;
  seen.reserve(static_cast<size_t>(graph.size()));
  std::vector<NodeId> stands_for(static_cast<size_t>(graph.size()));
  bool changed = false;
  auto replace = [&](Value& value) {
    if (value.exists()) value.node = stands_for[static_cast<size_t>(index(value.node))];
  };
  for (int32_t i = 0; i < graph.size(); ++i) {
    NodeId id{i};
    Node& node = graph.mutable_node(id);
    stands_for[static_cast<size_t>(i)] = id;
    for (Value& input : node.inputs) replace(input);
    if (is_named_leaf(node.op)) continue;
    size_t hash = hash_node(node);
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

}  // namespace octet
