#include "ir/plan.h"

#include <algorithm>
#include <unordered_set>

#include "ir/facts.h"

namespace octet {

const Node* exchange_of(const Node& node) {
  if (node.body == nullptr) return op_facts(node.op).collective && node.op != Op::kTakePart ? &node : nullptr;
  for (const Node& member : node.body->nodes())
    if (const Node* found = exchange_of(member)) return found;
  return nullptr;
}

double exchanged_bytes(const Graph& graph, const Node& node) {
  const Node& exchange = *exchange_of(node);
  return op_facts(exchange.op).cost(node.body == nullptr ? graph : *node.body, exchange).bytes;
}

bool is_async(const Node& node) { return node.op != Op::kFusion && exchanges(node) && node.attr<bool>("async"); }

std::vector<int32_t> joins_of(const Graph& graph) {
  std::vector<int32_t> joins(static_cast<size_t>(graph.size()), -1);
  std::vector<NodeId> shown(static_cast<size_t>(graph.size()), NodeId::kNone);  // by node: the one of whom it is a view
  std::vector<int32_t> open;                                                    // under way, two at most
  const auto join = [&](int32_t collective, int32_t at) {
    joins[static_cast<size_t>(collective)] = std::min(joins[static_cast<size_t>(collective)], at);
  };
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    for (const Value input : node.inputs) {
      if (!input.exists()) continue;
      const NodeId from = shown[slot(input.node)];
      if (from == NodeId::kNone) continue;
      if (op_facts(node.op).view)
        shown[static_cast<size_t>(i)] = from;
      else
        join(index(from), i);
    }
    if (!exchanges(node)) continue;
    const size_t stay = is_async(node) ? 1 : 0;  // which come one after the other
    for (; open.size() > stay; open.erase(open.begin())) join(open.front(), i);
    if (stay == 0) continue;
    shown[static_cast<size_t>(i)] = NodeId{i}, joins[static_cast<size_t>(i)] = graph.size();
    open.push_back(i);
  }
  return joins;
}

std::vector<SavedValue> saved_for_backward(const Graph& graph) {
  std::unordered_set<Value, ValueHash> read;
  for (const Node& node : graph.nodes()) {
    if (node.phase != Phase::kBackward && node.phase != Phase::kRecompute) continue;
    for (Value input : node.inputs) {
      if (!input.exists()) continue;
      while (op_facts(graph.node(input).op).view) input = graph.node(input).inputs[0];
      read.insert(input);
    }
  }
  std::vector<SavedValue> saved;
  for_each_result(graph, [&](Value value, const Node& node) {
    if (node.phase != Phase::kForward || is_named_leaf(node.op) || !read.contains(value)) return;
    const TensorType& type = graph.type(value);
    saved.push_back(
        {.name = node.name, .op = op_name(node.op), .layer = node.layer, .type = type, .bytes = type.bytes()});
  });
  return saved;
}

}  // namespace octet
