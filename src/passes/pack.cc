#include "passes/passes.h"

#include <algorithm>
#include <unordered_map>

#include "ir/rewrite.h"

namespace octet {
namespace {

// fold_slices: a product whose slices are each read once, by fusions whose kernels read columns of a wider matrix, is
// one product, and the slices move into its readers' bodies.

// Whether the Target's kernels of this fusion take operands whose rows lie further apart than they are wide: ropes with
// appends; activations that end in codes with a scale a row.
bool reads_columns(const Node& node, const Target& target) {
  if (node.op != Op::kFusion) return false;
  const std::optional<Producer> producer = fusion_producer(*node.body);
  if (!producer || !target.fuses(*producer, FusionPart::kColumns)) return false;
  if (*producer == Producer::kScatterRows) {
    const auto& members = node.body->nodes();
    return std::ranges::any_of(members, [](const Node& member) { return member.op == Op::kRope; });
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
using Parts = std::unordered_map<Value, Part, ValueHash>;  // by result of the old graph

// The reader with the products for inputs in place of their parts.
Node with_slices(const Node& reader, const Parts& parts, Rewriter& rewriter) {
  Node fusion = reader;
  fusion.inputs.clear();
  const Graph& old = *reader.body;
  Rewriter body(old);
  std::vector<std::pair<Value, const Part*>> sliced;  // leaves whose readers read a slice
  size_t input = 0;
  for (const NodeId leaf : old.inputs()) {
    const Value from = reader.inputs[input++];
    const auto part = parts.find(from);
    const Value outer = part == parts.end() ? rewriter.map(from) : part->second.whole;
    if (part != parts.end()) sliced.emplace_back(Value{leaf, 0}, &part->second);
    const auto known = std::ranges::find(fusion.inputs, outer) - fusion.inputs.begin();
    if (known == std::ssize(fusion.inputs)) {  // leaves come first: the n-th node is the n-th input
      fusion.inputs.push_back(outer);
      add_body_input(body.graph(), rewriter.graph(), outer, old.node(leaf).name);
    }
    body.set({leaf, 0}, {NodeId{static_cast<int32_t>(known)}, 0});
  }
  for (const auto& [leaf, part] : sliced)
    body.set(leaf, body.builder().slice(body.map(leaf), 1, part->begin, part->end));
  for (int32_t i = 0; i < old.size(); ++i) {
    if (old.node(NodeId{i}).op != Op::kInput) body.copy(NodeId{i});
  }
  fusion.body = std::make_shared<const Graph>(body.finish());
  return fusion;
}

bool fold_graph(Graph& graph, const CompileOptions& options) { return fold_slices(graph, options.target); }

bool order_codes_of(Graph& graph, const CompileOptions& options) { return order_codes(graph, options.target); }

bool pad(Program& program, const CompileOptions& options) {
  const bool padded = program.mesh().ranks() > 1;  // by shard, before it cut the tables
  return options.target.vocab_multiple > 1 && !padded && pad_vocab(program, options.target.vocab_multiple);
}

bool merge(Program& program, const CompileOptions& options) {
  const Target& target = options.target;
  return target.fuses(Producer::kProduct, FusionPart::kSiblings) &&
         merge_siblings(program, target.fuses(Producer::kProduct, FusionPart::kSlices));
}

}  // namespace

std::span<const Step> pack_steps() {
  static constexpr Step kSteps[] = {{"pad_vocab", pad},
                                    {"order_codes", on_graphs<order_codes_of>},
                                    {"merge_siblings", merge},
                                    {"fold_slices", on_graphs<fold_graph>}};
  return kSteps;
}

bool pack(Program& program, const CompileOptions& options) {
  const bool changed = run_steps(pack_steps(), program, options);
  for (Graph& graph : program.graphs()) graph.set_stage(Stage::kPacked);
  return changed;
}

NodeId find_foldable_product(const Graph& graph, const Target& target) {
  const UseGraph uses(graph);
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (split_product(graph.node(NodeId{i})) != nullptr && has_such_readers(uses, NodeId{i}, target)) return NodeId{i};
  }
  return NodeId::kNone;
}

bool fold_slices(Graph& graph, const Target& target) {
  const UseGraph uses(graph);
  Parts parts;
  return rewrite(graph, [&](Rewriter& rewriter, NodeId id) {
    const Node& node = graph.node(id);
    const Node* split = split_product(node);
    if (split == nullptr || !has_such_readers(uses, id, target)) {
      const bool reads = std::ranges::any_of(node.inputs, [&](Value input) { return parts.contains(input); });
      if (reads) rewriter.replace(id, with_slices(node, parts, rewriter));
      return reads;
    }
    Node product = *split;
    for (Value& input : product.inputs) {  // leaf n of the body stands for input n
      if (input.exists()) input = rewriter.map(node.inputs[slot(input.node)]);
    }
    product.name = node.name, product.layer = node.layer, product.phase = node.phase;
    const Value whole{rewriter.graph().add(std::move(product)), 0};
    int64_t begin = 0;
    for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
      const int64_t end = begin + node.results[static_cast<size_t>(r)].shape.cols();
      parts[{id, r}] = {whole, begin, end};
      begin = end;
    }
    return true;
  });
}

}  // namespace octet
