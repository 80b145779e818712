// fold_slices: a product whose slices are each read once, by fusions whose kernels read columns of a wider matrix, is
// one product, and the slices move into its readers' bodies.
#include <algorithm>
#include <map>

#include "ir/rewrite.h"
#include "passes/pack.h"
#include "passes/use_graph.h"

namespace octet {
namespace {

// Whether the Target's kernels of this fusion take operands whose rows lie further apart than they are wide: ropes with
// appends; activations that end in codes with a scale a row.
bool reads_columns(const Node& node, const Target& target) {
  if (node.op != Op::kFusion) return false;
  const std::optional<Producer> producer = fusion_producer(*node.body);
  if (!producer || !target.fuses(*producer, FusionPart::kColumns)) return false;
  if (*producer == Producer::kScatterRows) {
    const auto& members = node.body->nodes();
    return std::any_of(members.begin(), members.end(), [](const Node& member) { return member.op == Op::kRope; });
  }
  const std::optional<Chain> chain = read_chain(*node.body);
  const Node* quantize = chain ? chain->sinks[0].quantize : nullptr;
  return quantize != nullptr && quantize->attr<std::string>("scaling") == "row";
}

// The product of a fusion of a product and slices of its result, or null.
const Node* split_product(const Node& node) {
  if (node.op != Op::kFusion || fusion_producer(*node.body) != Producer::kProduct) return nullptr;
  const Node& last = node.body->nodes().back();
  return last.op == Op::kSlice ? &node.body->node(last.inputs[0]) : nullptr;
}

bool has_such_readers(const UseGraph& uses, NodeId id, const Target& target) {
  const Node& split = uses.node(id);
  for (int32_t r = 0; r < static_cast<int32_t>(split.results.size()); ++r) {
    const std::vector<NodeId>& users = uses.users({id, r});
    const bool fits = users.size() == 1 && !uses.is_output({id, r}) && reads_columns(uses.node(users[0]), target) &&
                      split.results[static_cast<size_t>(r)].dtype == DType::kBF16;
    if (!fits) return false;
  }
  return true;
}

// What a part is: columns [begin, end) of the product `whole` of the new graph.
struct Part {
  Value whole;
  int64_t begin = 0, end = 0;
};
using Parts = std::map<std::pair<int32_t, int32_t>, Part>;  // by (node, result) of the old graph

// The reader with the products for inputs in place of their parts.
Node with_slices(const Node& reader, const Parts& parts, Rewriter& rewriter) {
  Node fusion = reader;
  fusion.inputs.clear();
  auto body = std::make_shared<Graph>(reader.body->name());
  body->set_stage(reader.body->stage());
  Builder builder(*body);
  std::vector<Value> map(static_cast<size_t>(reader.body->size()));  // of results 0 of input leaves
  std::vector<std::pair<size_t, const Part*>> sliced;                // leaves to be made
  size_t input = 0;
  for (int32_t i = 0; i < reader.body->size(); ++i) {
    Node leaf = reader.body->node(NodeId{i});
    if (leaf.op != Op::kInput) continue;
    const Value old = reader.inputs[input++];
    const auto part = parts.find({index(old.node), old.result});
    const Value outer = part == parts.end() ? rewriter.map(old) : part->second.whole;
    if (part != parts.end()) sliced.emplace_back(static_cast<size_t>(i), &part->second);
    const auto known = std::find(fusion.inputs.begin(), fusion.inputs.end(), outer);
    if (known != fusion.inputs.end()) {  // leaves come first: the n-th node is the n-th input
      map[static_cast<size_t>(i)] = {NodeId{static_cast<int32_t>(known - fusion.inputs.begin())}, 0};
      continue;
    }
    leaf.results = {rewriter.graph().type(outer)};
    fusion.inputs.push_back(outer);
    map[static_cast<size_t>(i)] = {body->add(std::move(leaf)), 0};
  }
  for (const auto& [leaf, part] : sliced) map[leaf] = builder.slice(map[leaf], 1, part->begin, part->end);
  std::vector<NodeId> members(static_cast<size_t>(reader.body->size()), NodeId::kNone);
  const auto moved = [&](Value value) {
    if (!value.exists()) return value;
    const auto at = static_cast<size_t>(index(value.node));
    return members[at] == NodeId::kNone ? map[at] : Value{members[at], value.result};
  };
  for (int32_t i = 0; i < reader.body->size(); ++i) {
    Node node = reader.body->node(NodeId{i});
    if (node.op == Op::kInput) continue;
    for (Value& value : node.inputs) value = moved(value);
    members[static_cast<size_t>(i)] = body->add(std::move(node));
  }
  for (const NamedValue& output : reader.body->outputs()) body->outputs().push_back({output.name, moved(output.value)});
  fusion.body = std::move(body);
  return fusion;
}

}  // namespace

NodeId find_foldable_product(const Graph& graph, const Target& target) {
  const UseGraph uses(graph);
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (split_product(graph.node(NodeId{i})) != nullptr && has_such_readers(uses, NodeId{i}, target)) return NodeId{i};
  }
  return NodeId::kNone;
}

bool fold_slices(Graph& graph, const Target& target) {
  const UseGraph uses(graph);
  Rewriter rewriter(graph);
  Parts parts;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    if (const Node* split = split_product(node); split != nullptr && has_such_readers(uses, NodeId{i}, target)) {
      Node product = *split;
      for (Value& input : product.inputs) {  // leaf n of the body stands for input n
        if (input.exists()) input = rewriter.map(node.inputs[static_cast<size_t>(index(input.node))]);
      }
      product.name = node.name, product.layer = node.layer, product.phase = node.phase;
      const Value whole{rewriter.graph().add(std::move(product)), 0};
      int64_t begin = 0;
      for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
        const int64_t end = begin + node.results[static_cast<size_t>(r)].shape.cols();
        parts[{i, r}] = {whole, begin, end};
        begin = end;
      }
      continue;
    }
    const bool reads = std::any_of(node.inputs.begin(), node.inputs.end(), [&](Value input) {
      return input.exists() && parts.contains({index(input.node), input.result});
    });
    if (!reads) {
      rewriter.copy(NodeId{i});
      continue;
    }
    const NodeId id = rewriter.graph().add(with_slices(node, parts, rewriter));
    for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) rewriter.set({NodeId{i}, r}, {id, r});
  }
  if (parts.empty()) return false;
  graph = rewriter.finish();
  return true;
}

}  // namespace octet
