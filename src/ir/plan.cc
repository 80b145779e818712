#include "ir/plan.h"

#include <unordered_set>

#include "ir/facts.h"

namespace octet {

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
