#include "ir/builder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ir/facts.h"

namespace octet {
namespace {

constexpr const char* kInitNames[] = {"normal", "zeros", "ones"};
constexpr const char* kSplitNames[] = {"none", "column", "row", "vocab"};

// Of x W^T.
Attrs linear_attrs(const std::string& gemm) {
  return {{"gemm", gemm}, {"role", "fprop"}, {"trans_a", false}, {"trans_b", true}};
}

Value add_leaf(Graph& graph, Op op, const std::string& name, TensorType type, Attrs attrs, Phase phase) {
  if (Value found = graph.find_leaf(op, name); found.exists()) {
    check(graph.type(found) == type, ErrorCode::kInvalidArgument, "{} {} was {} and is now asked for as {}",
          op_name(op), name, to_string(graph.type(found)), to_string(type));
    return found;
  }
  Node leaf{.op = op, .attrs = std::move(attrs), .name = name, .phase = phase};
  leaf.results.push_back(std::move(type));
  return {graph.add(std::move(leaf)), 0};
}

}  // namespace

Builder::Scope::Scope(Builder& builder, const std::string& name, std::optional<int> layer)
    : builder_(builder), prefix_size_(builder.prefix_.size()), layer_(builder.layer_) {
  builder.prefix_ += name + ".";
  if (layer) builder.layer_ = *layer;
}

Builder::Scope::~Scope() {
  builder_.prefix_.resize(prefix_size_);
  builder_.layer_ = layer_;
}

Value Builder::input(const std::string& name, TensorType type, Attrs attrs) {
  return add_leaf(graph_, Op::kInput, name, std::move(type), std::move(attrs), phase_);
}

Value Builder::param(const std::string& name, Shape shape, ParamOptions options) {
  Attrs attrs = {{"init", kInitNames[static_cast<size_t>(options.init)]},
                 {"split", kSplitNames[static_cast<size_t>(options.split)]}};
  if (options.init == Init::kNormal) attrs.set("std", options.std);
  if (options.rows) attrs.set("update", "rows");
  return add_leaf(graph_, Op::kParam, path(name), {DType::kF32, std::move(shape)}, std::move(attrs), phase_);
}

Value Builder::state(const std::string& name, TensorType type) {
  return add_leaf(graph_, Op::kState, name, std::move(type), {}, phase_);
}

Value Builder::statistic(const std::string& name, Shape shape, double rate, double initial) {
  return add_leaf(graph_, Op::kState, path(name), {DType::kF32, std::move(shape)},
                  {{"rate", rate}, {"initial", initial}}, phase_);
}

void Builder::blend(Value statistic, Value sum, Value count) {
  const std::string name = graph_.node(statistic).name;
  output(kStatisticPrefix + name, sum);
  output(kStatisticCountPrefix + name, count.exists() ? count : constant(1));
}

Value Builder::constant(double value, Shape shape, DType dtype) {
  Node node{
      .op = Op::kConstant, .attrs = {{"value", value}}, .name = path("constant"), .layer = layer_, .phase = phase_};
  node.results.push_back({dtype, std::move(shape)});
  return {graph_.add(std::move(node)), 0};
}

Value Builder::linear(Value x, const std::string& name, int64_t out, LinearOptions options) {
  Value weight = param(name + ".weight", {out, shape(x).cols()}, {.std = options.std, .split = options.split});
  Value y{emit(Op::kMatmul, {x, weight}, linear_attrs(path(name)), name), 0};
  if (!options.bias) return y;
  // A bias of a column-split linear is split with its rows; one of a row-split linear is added after the sum.
  Split split = options.split == Split::kColumn ? Split::kColumn : Split::kNone;
  Value bias = param(name + ".bias", {out}, {.init = Init::kZeros, .split = split});
  return {emit(Op::kAdd, {y, bias}, {}, name + ".add_bias"), 0};
}

Builder::Routing Builder::top_k(Value logits, int64_t k, const std::string& scoring, bool renormalize) {
  NodeId id = emit(Op::kTopK, {logits}, {{"k", k}, {"scoring", scoring}, {"renormalize", renormalize}});
  return {{id, 0}, {id, 1}, {id, 2}, {id, 3}};
}

Builder::Groups Builder::group_rows(Value experts, int64_t groups) {
  NodeId id = emit(Op::kGroupRows, {experts}, {{"groups", groups}});
  return {{id, 0}, {id, 1}, {id, 2}};
}

Value Builder::grouped_linear(Value rows, Value offsets, const std::string& name, int64_t out, double std) {
  const int64_t experts = shape(offsets)[0] - 1;
  Value weight = param(name + ".weight", {experts * out, shape(rows).cols()}, {.std = std});
  Attrs attrs = {{"gemm", path(name)}, {"role", "fprop"}, {"trans_b", true}};
  return {emit(Op::kGroupedMatmul, {rows, weight, offsets}, std::move(attrs), name), 0};
}

Value Builder::head(Value x, Value table, const std::string& name) {
  Attrs attrs = linear_attrs(path(name));
  attrs.set("head", true);
  return {emit(Op::kMatmul, {x, table}, std::move(attrs), name), 0};
}

Value Builder::matmul(Value a, Value b, bool trans_a, bool trans_b, Value c, Attrs extra) {
  extra.set("trans_a", trans_a);
  extra.set("trans_b", trans_b);
  return {emit(Op::kMatmul, {a, b, c}, std::move(extra)), 0};
}

Value Builder::cast(Value x, DType to) {
  if (graph_.dtype(x) == to) return x;
  return {emit(Op::kCast, {x}, {{"to", dtype_name(to)}}), 0};
}

int64_t Builder::new_dropout_key() {
  if (next_dropout_key_ == 0) {  // first use: stay clear of the keys the graph already has
    for (const Node& node : graph_.nodes()) {
      next_dropout_key_ = std::max(next_dropout_key_, node.attrs.get_or<int64_t>("key", 0));
    }
    ++next_dropout_key_;
  }
  return next_dropout_key_++;
}

Value Builder::dropout(Value x, double p, int64_t bits) {
  if (p == 0) return x;
  Attrs attrs = {{"p", p}, {"key", new_dropout_key()}};
  if (bits != 32) attrs.set("bits", bits);
  return {emit(Op::kDropout, {x, rng()}, std::move(attrs)), 0};
}

Builder::Norm Builder::layer_norm(Value x, Value weight, Value bias, double eps) {
  NodeId id = emit(Op::kLayerNorm, {x, weight, bias}, {{"eps", eps}});
  return {{id, 0}, {id, 1}, {id, 2}};
}

Builder::Norm Builder::rms_norm(Value x, Value weight, double eps) {
  NodeId id = emit(Op::kRmsNorm, {x, weight}, {{"eps", eps}});
  return {{id, 0}, Value::none(), {id, 1}};
}

Builder::AttentionResult Builder::attention(Value q, Value k, Value v, Value segments,
                                            const AttentionOptions& options) {
  double scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(options.head_dim));
  Attrs attrs = {{"heads", options.heads},
                 {"kv_heads", options.kv_heads},
                 {"head_dim", options.head_dim},
                 {"scale", scale},
                 {"window", options.window},
                 {"max_length", options.max_length},
                 {"equal_length", options.equal_length}};
  if (!options.causal) attrs.set("causal", false);
  if (options.alibi > 0) {
    attrs.set("alibi", options.alibi);
    attrs.set("alibi_scale", options.alibi_scale);
  }
  std::vector<Value> inputs = {q, k, v, segments};
  if (options.dropout > 0) {
    inputs.push_back(rng());
    attrs.set("dropout", options.dropout);
    if (options.dropout_bits != 32) attrs.set("bits", options.dropout_bits);
    attrs.set("key", new_dropout_key());
  }
  NodeId id = emit(Op::kAttention, std::move(inputs), std::move(attrs));
  return {{id, 0}, {id, 1}};
}

Value Builder::rope(Value x, Value positions, const RopeOptions& options) {
  Attrs attrs = {{"heads", options.heads},
                 {"head_dim", options.head_dim},
                 {"rotary_dim", options.rotary_dim == RopeOptions::kWholeHead ? options.head_dim : options.rotary_dim},
                 {"theta", options.theta},
                 {"interleaved", options.interleaved},
                 {"scaling", options.scaling}};
  if (options.scaling != "none") attrs.set("factor", options.factor);
  if (options.scaling == "llama3" || options.scaling == "yarn") {
    attrs.set("low_freq_factor", options.low_freq_factor);
    attrs.set("high_freq_factor", options.high_freq_factor);
    attrs.set("original_max_positions", options.original_max_positions);
  }
  if (options.scaling == "yarn") {
    attrs.set("truncate", options.truncate);
    attrs.set("attention_factor", options.attention_factor);
  }
  return {emit(Op::kRope, {x, positions}, std::move(attrs)), 0};
}

Builder::Loss Builder::cross_entropy(Value logits, Value targets, Value lse) {
  NodeId id = emit(Op::kCrossEntropy, lse.exists() ? std::vector{logits, targets, lse} : std::vector{logits, targets});
  return {{id, 0}, {id, 1}};
}

Value Builder::reshape(Value x, Shape shape) {
  return {emit(Op::kReshape, {x}, {{"shape", std::move(shape.dims)}}), 0};
}

Value Builder::slice(Value x, int axis, int64_t begin, int64_t end) {
  if (axis < 0) axis += shape(x).rank();
  return {emit(Op::kSlice, {x}, {{"axis", int64_t{axis}}, {"begin", begin}, {"end", end}}), 0};
}

Value Builder::concat(const std::vector<Value>& parts, int axis) {
  if (axis < 0 && !parts.empty()) axis += shape(parts[0]).rank();
  return {emit(Op::kConcat, parts, {{"axis", int64_t{axis}}}), 0};
}

Value Builder::reduce(Value x, const std::string& reduction, const std::string& axis) {
  return {emit(Op::kReduce, {x}, {{"reduction", reduction}, {"axis", axis}}), 0};
}

NodeId Builder::emit(Op op, std::vector<Value> inputs, Attrs attrs, const std::string& name) {
  return graph_.add(Node{.op = op,
                         .inputs = std::move(inputs),
                         .attrs = std::move(attrs),
                         .name = path(name.empty() ? op_name(op) : name),
                         .layer = layer_,
                         .phase = phase_});
}

}  // namespace octet
