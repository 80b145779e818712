// Sums that a product can start from: add(matmul(a, b), x) becomes matmul(a, b, x).
#include <unordered_map>

#include "ir/rewrite.h"
#include "passes/fuse.h"
#include "passes/use_graph.h"

namespace octet {
namespace {

struct Merge {
  NodeId product;
  Value addend;
};

// The side of the sum that is a product nobody else reads, made in the type it is summed in.
bool find_merge(const UseGraph& uses, const Node& sum, const Target& target, Merge& merge) {
  const Graph& graph = uses.graph();
  for (size_t side = 0; side < 2; ++side) {
    Value value = sum.inputs[side], other = sum.inputs[1 - side];
    const Node& node = graph.node(value);
    if (node.op != Op::kMatmul && node.op != Op::kScaledMatmul) continue;
    bool has_c = node.operand("c").exists();
    bool same = graph.type(value) == graph.type(other) && sum.results[0] == graph.type(value);
    if (has_c || !same || uses.users(value).size() != 1 || uses.is_output(value) || value == other) continue;
    bool accumulates = graph.dtype(value) == DType::kF32 && node.attr<std::string>("role") == "wgrad";
    if (!target.fuses(Producer::kProduct, accumulates ? FusionPart::kAccumulate : FusionPart::kResidual)) continue;
    merge = {value.node, other};
    return true;
  }
  return false;
}

}  // namespace

bool merge_sums(Graph& graph, const Target& target) {
  UseGraph uses(graph);
  std::unordered_map<int32_t, Merge> sums;  // by the sum's index
  std::vector<bool> merged(static_cast<size_t>(graph.size()), false);
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    Merge merge;
    if (node.op != Op::kAdd || !find_merge(uses, node, target, merge)) continue;
    merged[static_cast<size_t>(index(merge.product))] = true;
    sums.emplace(i, merge);
  }
  if (sums.empty()) return false;
  Rewriter rewriter(graph);
  for (int32_t i = 0; i < graph.size(); ++i) {
    auto sum = sums.find(i);
    if (sum == sums.end()) {
      // The product moves to its sum, where the addend is known.
      if (!merged[static_cast<size_t>(i)]) rewriter.copy(NodeId{i});
      continue;
    }
    Node product = graph.node(sum->second.product);
    product.inputs.resize(static_cast<size_t>(operand_index(product.op, "c")), Value::none());
    for (Value& input : product.inputs) input = rewriter.map(input);
    product.inputs.push_back(rewriter.map(sum->second.addend));
    rewriter.set({NodeId{i}, 0}, {rewriter.graph().add(std::move(product)), 0});
  }
  Graph result = rewriter.finish();
  graph = std::move(result);
  return true;
}

}  // namespace octet
