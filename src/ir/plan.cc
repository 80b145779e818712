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
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    if (node.phase != Phase::kForward || node.op == Op::kInput || node.op == Op::kParam || node.op == Op::kState) {
      continue;
    }
    for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
      if (!read.contains({NodeId{i}, r})) continue;
      const TensorType& type = node.results[static_cast<size_t>(r)];
      saved.push_back(
          {.name = node.name, .op = op_name(node.op), .layer = node.layer, .type = type, .bytes = type.bytes()});
    }
  }
  return saved;
}

}  // namespace octet
