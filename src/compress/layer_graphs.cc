#include "compress/layer_graphs.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "ir/rewrite.h"

namespace octet {
namespace {

// What `to` is computed from, down to `from` (none: all of it), which becomes the input "x".
Graph cut(const Graph& whole, Value from, Value to, const std::string& name) {
  std::vector<bool> needed(static_cast<size_t>(whole.size()));
  needed[slot(to.node)] = true;
  for (int32_t i = whole.size() - 1; i >= 0; --i) {
    if (!needed[static_cast<size_t>(i)]) continue;
    for (const Value& value : whole.node(NodeId{i}).inputs)
      if (value.exists() && value != from) needed[slot(value.node)] = true;
  }
  Graph part(name);
  Builder builder(part);
  ValueTable<Value> to_part(whole);
  if (from.exists()) to_part[from] = builder.input("x", whole.type(from));
  for (int32_t i = 0; i < whole.size(); ++i) {
    if (!needed[static_cast<size_t>(i)]) continue;
    Node node = whole.node(NodeId{i});
    for (Value& value : node.inputs)
      if (value.exists()) value = to_part[value];
    const auto results = static_cast<int32_t>(node.results.size());
    const NodeId id = part.add(std::move(node));
    for (int32_t r = 0; r < results; ++r) to_part[{NodeId{i}, r}] = {id, r};
  }
  builder.output("y", to_part[to]);
  return part;
}

class Folding {
 public:
  explicit Folding(const Graph& graph) : graph_(graph), uses_(graph) {}

  // `readers`: linears, all that may read x.
  std::optional<FoldPlace> place(Value x, size_t readers) const {
    if (uses_.users(x).size() != readers || uses_.is_output(x)) return std::nullopt;
    const Node& node = graph_.node(x);
    const auto linear = [&](Value value) { return rows_of_linear(value, graph_.shape(x).cols()); };
    switch (node.op) {
      case Op::kLayerNorm:
      case Op::kRmsNorm: return norm(node);
      case Op::kMul: {
        const auto second = linear(node.inputs[1]);
        return second ? second : linear(node.inputs[0]);
      }
      case Op::kRelu: return linear(node.inputs[0]);
      case Op::kAttention:  // heads of keys that several heads of queries share mix channels of v
        if (node.attr<int64_t>("heads") != node.attr<int64_t>("kv_heads")) return std::nullopt;
        return linear(node.inputs[2]);
      default: return std::nullopt;
    }
  }

 private:
  bool is_param(Value value) const { return graph_.node(value).op == Op::kParam && uses_.users(value).size() == 1; }

  std::optional<FoldPlace> norm(const Node& node) const {
    FoldPlace place;
    Value weight = node.operand("weight");
    if (const Node& sum = graph_.node(weight); sum.op == Op::kAdd) {
      const Node& one = graph_.node(sum.inputs[1]);
      if (one.op != Op::kConstant || one.attr<double>("value") != 1 || uses_.users(weight).size() != 1)
        return std::nullopt;
      place.plus_one = true;
      weight = sum.inputs[0];
    }
    if (!is_param(weight)) return std::nullopt;
    place.vectors.push_back(graph_.node(weight).name);
    if (node.op != Op::kLayerNorm) return place;
    const Node& bias = graph_.node(node.operand("bias"));
    if (bias.op == Op::kConstant && bias.attr<double>("value") == 0) return place;
    if (!is_param(node.operand("bias"))) return std::nullopt;
    place.vectors.push_back(bias.name);
    return place;
  }

  // The linear, with its bias, that makes `value` [T, cols] for one reader.
  std::optional<FoldPlace> rows_of_linear(Value value, int64_t cols) const {
    FoldPlace place;
    if (uses_.users(value).size() != 1 || graph_.shape(value).cols() != cols) return std::nullopt;
    const Node* node = &graph_.node(value);
    if (node->op == Op::kAdd) {
      if (!is_param(node->inputs[1]) || uses_.users(node->inputs[0]).size() != 1) return std::nullopt;
      place.linear_bias = graph_.node(node->inputs[1]).name;
      node = &graph_.node(node->inputs[0]);
    }
    if (node->op != Op::kMatmul || !node->attrs.has("gemm") || !is_param(node->inputs[1])) return std::nullopt;
    place.linear = node->attrs.get<std::string>("gemm");
    return place;
  }

  const Graph& graph_;
  UseGraph uses_;
};

std::vector<LinearInput> find_inputs(const Graph& graph) {
  std::vector<LinearInput> inputs;
  for (const Node& node : graph.nodes()) {
    const bool grouped = node.op == Op::kGroupedMatmul;
    if ((node.op != Op::kMatmul && !grouped) || !node.attrs.has("gemm")) continue;
    const Value x = node.inputs[0];
    auto known = std::ranges::find_if(inputs, [&](const LinearInput& input) { return input.x == x; });
    if (known == inputs.end()) known = inputs.insert(inputs.end(), {.x = x, .width = graph.shape(x).cols()});
    if (grouped) known->offsets = node.operand("offsets"), known->experts = graph.shape(known->offsets)[0] - 1;
    known->gemms.push_back(node.attrs.get<std::string>("gemm"));
  }
  const Folding folding(graph);
  for (LinearInput& input : inputs) input.fold = folding.place(input.x, input.gemms.size());
  return inputs;
}

}  // namespace

LayerGraphs::LayerGraphs(const ModelConfig& config, int64_t length) {
  Builder builder(whole_);
  build_logits(builder, config, {.tokens = length, .max_segments = 1, .max_length = length});
  bounds_.resize(static_cast<size_t>(config.layers) + 1, Value::none());
  const auto reads = [&](int64_t part, Value value) {
    Value& bound = bounds_[static_cast<size_t>(part)];
    check(!bound.exists() || bound == value, ErrorCode::kUnsupported,
          "{} reads more than one value of the layers before it: it is not quantized layer by layer",
          part < config.layers ? "layer " + std::to_string(part) : "the head");
    bound = value;
  };
  bool in_layers = false;
  for (const Node& node : whole_.nodes()) {
    in_layers |= node.layer >= 0;
    for (const Value& value : node.inputs) {
      if (!value.exists()) continue;
      const Node& from = whole_.node(value);
      if (from.op == Op::kConstant || is_named_leaf(from.op) || from.layer == node.layer) continue;
      if (node.layer >= 0) reads(node.layer, value);
      if (node.layer < 0 && in_layers) reads(config.layers, value);
    }
  }
}

Graph LayerGraphs::embedding() const { return cut(whole_, Value::none(), bounds_[0], "embedding"); }

LayerGraph LayerGraphs::layer(int64_t index) const {
  const auto at = static_cast<size_t>(index);
  LayerGraph layer{cut(whole_, bounds_[at], bounds_[at + 1], "layer"), {}};
  layer.inputs = find_inputs(layer.graph);
  return layer;
}

}  // namespace octet
