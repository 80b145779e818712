// The last layer's rows that somebody reads: behind its keys and values a step needs only the rows it samples or scores
// from, and a prompt has few of them.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/rewrite.h"
#include "passes/serving_graphs.h"

namespace octet {
namespace {

NodeId last_attention(const Graph& graph) {
  for (int32_t i = graph.size() - 1; i >= 0; --i)
    if (graph.node(NodeId{i}).op == Op::kPagedAttention) return NodeId{i};
  return NodeId::kNone;
}

// Nodes that compute every row: what caches are filled with, and the linears beside these, with their biases, which
// become one product (merge_siblings) only where they do in the graphs of every size.
std::vector<bool> nodes_of_all_rows(const Graph& graph) {
  std::vector<bool> all(static_cast<size_t>(graph.size()), false);
  for (const NamedValue& update : graph.updates())
    if (update.name != kHiddenState) all[slot(update.value.node)] = true;
  const auto need_inputs = [&] {
    for (int32_t i = graph.size() - 1; i >= 0; --i) {
      if (!all[static_cast<size_t>(i)]) continue;
      for (Value input : graph.node(NodeId{i}).inputs)
        if (input.exists()) all[slot(input.node)] = true;
    }
  };
  need_inputs();
  ValueTable<char> read(graph), linear(graph);  // read by a linear of all rows; such linears' results
  for (int32_t i = 0; i < graph.size(); ++i)
    if (const Node& node = graph.node(NodeId{i}); all[static_cast<size_t>(i)] && is_linear(node))
      read[node.inputs[0]] = 1;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    const bool beside = is_linear(node) && read[node.inputs[0]] != 0;
    const bool bias = node.op == Op::kAdd && linear[node.inputs[0]] != 0 && graph.node(node.inputs[1]).op == Op::kParam;
    if (beside) linear[{NodeId{i}, 0}] = 1;
    if (beside || bias) all[static_cast<size_t>(i)] = true;
  }
  need_inputs();
  return all;
}

class RowSelection {
 public:
  RowSelection(const Graph& forward, int64_t rows)
      : old_(forward),
        rows_(rows),
        all_(nodes_of_all_rows(forward)),
        is_rows_(batch_rows(forward)),
        selected_(forward),
        rewriter_(forward) {}

  Graph run() {
    Builder& b = rewriter_.builder();
    attention_ = last_attention(old_);
    for (int32_t i = 0; i < old_.size(); ++i) {
      const Node& node = old_.node(NodeId{i});
      b.set_layer(node.layer);
      const bool leaf = node.inputs.empty();
      if (leaf && node.name == "hidden_rows") {
        rewriter_.set({NodeId{i}, 0}, b.input(node.name, {DType::kI32, {rows_}}, {{"pad", -1}}));
      } else if (leaf || all_[static_cast<size_t>(i)]) {
        rewriter_.copy(NodeId{i});
      } else {
        rewriter_.replace(NodeId{i}, on_selected(NodeId{i}));
      }
    }
    return rewriter_.finish();
  }

 private:
  // The node on the selected rows.
  Node on_selected(NodeId id) {
    Node node = old_.node(id);
    for (Value& input : node.inputs)
      if (input.exists()) input = selected(input);
    if (id == attention_) {  // each row is a sequence of one query
      node.inputs[3] = of_rows(3, "read_segments", rows_ + 1);
      node.inputs[4] = of_rows(4, "read_lengths", rows_);
      node.inputs[5] = of_rows(5, "read_table", rows_);
      node.attrs.set("max_query_len", 1);
    }
    if (node.op == Op::kReshape) {  // of rows, or of their heads
      const int64_t before = old_.shape(old_.node(id).inputs[0]).elements();
      Shape shape = node.results[0].shape;
      shape[0] = shape[0] * rewriter_.graph().shape(node.inputs[0]).elements() / before;
      node.attrs.set("shape", shape.dims);
    }
    node.results = infer_types(rewriter_.graph(), node);
    return node;
  }

  Value selected(Value value) {
    if (is_rows_[value] == 0 || !all_[slot(value.node)]) return rewriter_.map(value);
    if (selected_[value].exists()) return selected_[value];
    Builder& b = rewriter_.builder();
    const Node& node = old_.node(value.node);
    if (node.op == Op::kInput) {
      check(node.name == "positions", ErrorCode::kInternal, "serving: the last layer of graph {} reads input {}",
            old_.name(), node.name);
      return selected_[value] = b.input("read_positions", {DType::kI32, {rows_}});
    }
    return selected_[value] = b.select_rows(rewriter_.map(value), b.input("read_rows", {DType::kI32, {rows_}}));
  }

  // An input in place of one of attention's, as long as there are rows.
  Value of_rows(size_t input, const char* name, int64_t rows) {
    const Node& leaf = old_.node(old_.node(attention_).inputs[input].node);
    TensorType type = leaf.results[0];
    type.shape[0] = rows;
    return rewriter_.builder().input(name, std::move(type), leaf.attrs);
  }

  const Graph& old_;
  const int64_t rows_;
  const std::vector<bool> all_;  // by node
  const ValueTable<char> is_rows_;
  ValueTable<Value> selected_;
  Rewriter rewriter_;
  NodeId attention_ = NodeId::kNone;
};

}  // namespace

Graph read_rows_only(const Graph& forward, int64_t rows) { return RowSelection(forward, rows).run(); }

}  // namespace octet
