// pad_vocab: zero rows under the tables output heads read, and under their biases. Every shape that follows is inferred
// again; a graph with an op that is not known to leave padded rows alone is left unpadded.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/rewrite.h"
#include "passes/passes.h"

namespace octet {
namespace {

using Paddings = std::map<std::string, int64_t>;  // rows with the padding, by state entry

bool is_head(const Node& node) {
  return (node.op == Op::kMatmul || node.op == Op::kScaledMatmul) && node.attr<bool>("head");
}

// Tables that a head's product reads directly, and biases added to it: as params, or as copies of them. With
// `embeddings` also the vocabularies that ids are looked up in. Not those of a head whose product has a whole matrix
// added, as an adapter does: that has the logical columns.
std::set<std::string> vocab_tables(const Program& program, bool embeddings) {
  std::set<std::string> tables, adapted;
  for (const Graph& graph : program.graphs()) {
    for (const Node& node : graph.nodes()) {
      const bool adds_bias = node.op == Op::kAdd && is_head(graph.node(node.inputs[0]));
      const bool looks_up = embeddings && node.op == Op::kEmbedding;
      if (!is_head(node) && !adds_bias && !looks_up) continue;
      if (adds_bias && graph.shape(node.inputs[1]) == node.results[0].shape)
        if (const StateEntry* entry = program.find_state(graph.node(graph.node(node.inputs[0]).operand("b")).name))
          adapted.insert(entry->param);
      const Node& leaf = graph.node(is_head(node) ? node.operand("b") : node.inputs[1]);
      const StateEntry* entry =
          leaf.op == Op::kParam || leaf.op == Op::kState ? program.find_state(leaf.name) : nullptr;
      if (entry != nullptr && !entry->param.empty()) tables.insert(entry->param);
    }
  }
  for (const std::string& table : adapted) tables.erase(table);
  return tables;
}

// Ops whose padded results hold nothing but zeros beyond what is padded in their operands.
bool keeps_padding_apart(Op op) {
  switch (op) {
    case Op::kMatmul:
    case Op::kScaledMatmul:
    case Op::kEmbeddingGrad:
    case Op::kCrossEntropyGrad:
    case Op::kReduce:
    case Op::kConstant: return true;
    default: return is_optimizer_update(op) || (op_facts(op).elementwise && op_facts(op).linear != 0);
  }
}

// Ops whose results are the same whether an operand is padded or not: ids name logical rows, losses count logical
// classes, zeros add nothing to a norm. Another op that reads logits would see the padded columns (sample): it gets the
// logical ones where tables must be padded, to be cut.
bool may_read_padding(Op op) {
  return keeps_padding_apart(op) || op == Op::kEmbedding || op == Op::kCrossEntropy || op == Op::kSquareSum;
}

class PaddedGraph {
 public:
  // `slices`: columns of what is padded are taken for ops that may not read it.
  PaddedGraph(const Graph& graph, const Paddings& paddings, bool slices)
      : old_(graph), rewriter_(graph), paddings_(paddings), slices_(slices) {
    find_table_gradients();
  }

  // None when an op stands in the way.
  std::optional<Graph> run() {
    Builder& builder = rewriter_.builder();
    for (int32_t i = 0; i < old_.size(); ++i) {
      if (!copy(NodeId{i})) return std::nullopt;
    }
    builder.set_layer(-1);
    for (const NamedValue& output : old_.outputs()) {
      const Shape& logical = old_.shape(output.value);
      Value value = rewriter_.map(output.value);
      if (builder.shape(value) == logical) continue;
      if (logical.rank() != 2 || builder.shape(value)[0] != logical[0]) return std::nullopt;
      rewriter_.set(output.value, builder.slice(value, 1, 0, logical[1]));
    }
    return rewriter_.finish();
  }

 private:
  // Nodes whose value becomes, through sums, the gradient of a padded table, with that table's padding.
  void find_table_gradients() {
    for (const NamedValue& update : old_.updates()) {
      auto padding = paddings_.find(update.name);
      if (padding != paddings_.end()) rows_[index(update.value.node)] = padding->second;
    }
    for (int32_t i = old_.size() - 1; i >= 0; --i) {
      auto rows = rows_.find(i);
      const Node& node = old_.node(NodeId{i});
      if (rows == rows_.end()) continue;
      for (const size_t k : addends(old_, node)) rows_[index(node.inputs[k].node)] = rows->second;
    }
  }

  bool copy(NodeId id) {
    const Node& node = old_.node(id);
    Node copy = node;
    for (Value& input : copy.inputs) input = rewriter_.map(input);
    auto padding = paddings_.find(node.name);
    bool leaf = node.op == Op::kParam || node.op == Op::kState;
    if (leaf && padding != paddings_.end()) {
      copy.results[0].shape[0] = padding->second;
    }
    auto rows = rows_.find(index(id));
    if (rows != rows_.end() && node.op == Op::kEmbeddingGrad) copy.attrs.set("rows", rows->second);
    if (rows != rows_.end() && node.op == Op::kConstant) copy.results[0].shape[0] = rows->second;
    bool loss = node.op == Op::kCrossEntropy || node.op == Op::kCrossEntropyGrad;
    int64_t classes = loss ? old_.shape(node.inputs[0]).cols() : 0;
    if (loss && rewriter_.graph().shape(copy.inputs[0]).cols() != classes) copy.attrs.set("classes", classes);
    for (size_t i = 0; i < copy.inputs.size(); ++i) {
      Value& input = copy.inputs[i];
      const bool padded = input.exists() && rewriter_.graph().shape(input) != old_.shape(node.inputs[i]);
      if (!padded || may_read_padding(node.op)) continue;
      if (!slices_ || old_.shape(node.inputs[i]).rank() != 2) return false;
      const auto [known, added] = sliced_.try_emplace(input);
      if (added) known->second = rewriter_.builder().slice(input, 1, 0, old_.shape(node.inputs[i])[1]);
      input = known->second;
    }
    NodeId made = rewriter_.graph().add(std::move(copy));
    for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
      bool changed = rewriter_.graph().shape({made, r}) != node.results[static_cast<size_t>(r)].shape;
      if (changed && !leaf && !keeps_padding_apart(node.op)) return false;
      rewriter_.set({id, r}, {made, r});
    }
    return true;
  }

  const Graph& old_;
  Rewriter rewriter_;
  const Paddings& paddings_;
  bool slices_;
  std::unordered_map<Value, Value, ValueHash> sliced_;
  std::map<int32_t, int64_t> rows_;  // by old node
};

}  // namespace

bool pad_vocab(Program& program, int64_t multiple, bool embeddings) {
  std::set<std::string> tables = vocab_tables(program, embeddings);
  for (const StateEntry& entry : program.states())  // scales of groups or tiles lie otherwise; gradients of rows
    if ((entry.role == StateRole::kScaleInv && entry.type.shape.rank() == 2) || entry.update == Update::kRows)
      tables.erase(entry.param);
  Paddings paddings;
  for (const StateEntry& entry : program.states()) {
    if (!tables.contains(entry.param)) continue;
    const StateEntry* table = program.find_state(entry.param, StateRole::kMaster);
    if (table == nullptr) table = program.find_state(entry.param, StateRole::kCodes);
    int64_t rows = entry.type.shape[0], padded = (rows + multiple - 1) / multiple * multiple;
    if (padded != rows && table != nullptr && rows == table->type.shape[0]) paddings[entry.name] = padded;
  }
  if (paddings.empty()) return false;
  std::vector<Graph> graphs;
  for (const Graph& graph : program.graphs()) {
    const bool slices = embeddings || graph.role() == GraphRole::kEval;  // what measures may look at logits
    std::optional<Graph> padded = PaddedGraph(graph, paddings, slices).run();
    if (!padded) return false;
    graphs.push_back(std::move(*padded));
  }
  for (StateEntry& entry : program.states()) {
    auto padding = paddings.find(entry.name);
    if (padding == paddings.end()) continue;
    if (entry.placements.empty()) entry.placements = {place_rows(entry.param, entry.type.shape)};
    entry.type.shape[0] = padding->second;
  }
  for (Graph& graph : graphs) program.add_graph(std::move(graph));
  return true;
}

}  // namespace octet
