// How graphs are written: one call per op, with names and layer indices taken from scopes. Models see only this header.
//
// The builder speaks of logical float32 values; which types, ranks, caches or recomputation a graph gets is decided by
// passes. All activations are token-flattened: [T, H].
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace octet {

enum class Init { kNormal, kZeros, kOnes };

// How a parameter may be split over ranks; read by the shard pass.
enum class Split { kNone, kColumn, kRow, kVocab };

struct ParamOptions {
  Init init = Init::kNormal;
  double std = 0.02;  // of kNormal
  Split split = Split::kNone;
  bool rows = false;  // of a table that lookups alone read: its gradient is the rows that a step looks up
};

struct LinearOptions {
  bool bias = false;
  double std = 0.02;
  Split split = Split::kColumn;
};

struct RopeOptions {
  static constexpr int64_t kWholeHead = -1;
  int64_t heads = 1, head_dim = 0;
  int64_t rotary_dim = kWholeHead;  // of head_dim, the first so many turn
  double theta = 10000.0;
  bool interleaved = false;                                      // true: pairs (2i, 2i+1); false: halves (i, i + d/2)
  std::string scaling = "none";                                  // none | linear | llama3 | yarn
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;  // linear uses factor alone; yarn: beta_slow, beta_fast
  int64_t original_max_positions = 8192;
  bool truncate = true;         // yarn: its ramp begins and ends at whole pairs
  double attention_factor = 1;  // yarn: what turns is multiplied by it
  bool operator==(const RopeOptions&) const = default;
};

struct AttentionOptions {
  int64_t heads = 1, kv_heads = 1, head_dim = 0;
  double scale = 0;          // 0 = 1/sqrt(head_dim)
  bool causal = true;        // false: a token sees the later ones of its segment too
  int64_t window = 0;        // 0 = unlimited; N: a token sees itself and N-1 before it (not causal: and N-1 after it)
  int64_t max_length = 0;    // longest segment (static)
  int64_t equal_length = 0;  // > 0: every segment has exactly this length
  double dropout = 0;
  int64_t dropout_bits = 32;  // or 8: ir/dropout_bits.h
  double alibi =
      0;  // > 0: linear biases whose slopes end at 2^-alibi (published models: 8), see kernels/common/alibi.h
  double alibi_scale = 1;  // times the biases, which join the scaled scores
};

// Outputs of a training graph that Builder::blend makes: what a statistic NAME is blended with, and its count.
inline constexpr const char *kStatisticPrefix = "statistic.", *kStatisticCountPrefix = "statistic_count.";

class Builder {
 public:
  explicit Builder(Graph& graph) : graph_(graph) {}
  Graph& graph() { return graph_; }
  const Shape& shape(Value v) const { return graph_.shape(v); }

  // Scopes prefix names with dots; a layer scope also sets the layer index. auto s = b.scope("attn");
  class Scope {
   public:
    Scope(Builder& builder, const std::string& name, std::optional<int> layer = {});
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    Builder& builder_;
    size_t prefix_size_;
    int32_t layer_;
  };
  Scope scope(const std::string& name) { return Scope(*this, name); }
  Scope layer(int index) { return Scope(*this, "layers." + std::to_string(index), index); }
  std::string path(const std::string& name) const { return prefix_ + name; }
  void set_phase(Phase phase) { phase_ = phase; }
  void set_layer(int32_t layer) { layer_ = layer; }

  // Leaves. Asking for the same leaf again returns the same value (types must agree). Param names are used with the
  // current scope's prefix; param options are kept as attrs (init, std, split).
  Value input(const std::string& name, TensorType type, Attrs attrs = {});
  Value param(const std::string& name, Shape shape, ParamOptions options = {});
  Value state(const std::string& name, TensorType type);
  // A state f32 that no gradient changes and checkpoints hold, "running mean": after each step whose gradients are
  // finite it is nearer, by `rate`, to the mean that blend() makes in graphs of role kTrain.
  Value statistic(const std::string& name, Shape shape, double rate, double initial = 0);
  // The mean is `sum` by `count` f32[1], each added up over a step's micro-batches and ranks; without a count the mean
  // over these of `sum`. A count of 0 changes nothing.
  void blend(Value statistic, Value sum, Value count = {});
  Value constant(double value, Shape shape = {1}, DType dtype = DType::kF32);

  // An int32 of every token.
  Value of_tokens(const std::string& name, int64_t tokens, Attrs attrs = {}) {
    attrs.set("rows", "batch");
    return input(name, {DType::kI32, {tokens}}, std::move(attrs));
  }
  // Standard inputs of a language model graph.
  Value token_ids(int64_t tokens) { return of_tokens("ids", tokens); }
  Value positions(int64_t tokens) { return of_tokens("positions", tokens); }
  Value targets(int64_t tokens) { return of_tokens("targets", tokens, {{"pad", -1}}); }
  Value segments(int64_t max_segments) {  // starts, then the end repeated
    return input("segments", {DType::kI32, {max_segments + 1}}, {{"rest", "last"}});
  }
  Value rng() { return input("rng", {DType::kI64, {3}}); }  // seed, step, micro-batch

  // y = x W^T (+ bias) with W [out, in] named "<name>.weight", bias "<name>.bias": the unit the precision pass decides
  // on.
  Value linear(Value x, const std::string& name, int64_t out, LinearOptions options = {});
  // The output head: y = x W^T with a given table (tied embeddings) or its own; kept in high precision by recipes.
  Value head(Value x, Value table, const std::string& name);

  Value matmul(Value a, Value b, bool trans_a = false, bool trans_b = false, Value c = {}, Attrs extra = {});
  Value cast(Value x, DType to);
  Value scale(Value x, double value) { return {emit(Op::kScale, {x}, {{"value", value}}), 0}; }
  Value gelu(Value x, bool approximate) { return {emit(Op::kGelu, {x}, {{"approximate", approximate}}), 0}; }
  Value silu(Value x) { return {emit(Op::kSilu, {x}), 0}; }
  Value relu(Value x) { return {emit(Op::kRelu, {x}), 0}; }
  Value tanh(Value x) { return {emit(Op::kTanh, {x}), 0}; }
  Value add(Value a, Value b) { return {emit(Op::kAdd, {a, b}), 0}; }
  Value sub(Value a, Value b) { return {emit(Op::kSub, {a, b}), 0}; }
  Value mul(Value a, Value b) { return {emit(Op::kMul, {a, b}), 0}; }
  Value maximum(Value a, Value b) { return {emit(Op::kMaximum, {a, b}), 0}; }
  Value dropout(Value x, double p, int64_t bits = 32);  // p == 0 returns x

  struct Norm {
    Value y, mean, rstd;  // mean: none for rms_norm
  };
  Norm layer_norm(Value x, Value weight, Value bias, double eps);
  Norm rms_norm(Value x, Value weight, double eps);

  struct AttentionResult {
    Value out, lse;
  };
  AttentionResult attention(Value q, Value k, Value v, Value segments, const AttentionOptions& options);
  Value rope(Value x, Value positions, const RopeOptions& options);
  Value embedding(Value ids, Value table) { return {emit(Op::kEmbedding, {ids, table}), 0}; }

  struct Loss {
    Value per_token, lse;
  };
  Loss cross_entropy(Value logits, Value targets, Value lse = {});  // lse: given instead of made here

  Value reshape(Value x, Shape shape);
  Value slice(Value x, int axis, int64_t begin, int64_t end);
  Value concat(const std::vector<Value>& parts, int axis);
  Value transpose(Value x) { return {emit(Op::kTranspose, {x}), 0}; }
  Value reduce(Value x, const std::string& reduction, const std::string& axis);
  Value select_rows(Value x, Value rows) { return {emit(Op::kSelectRows, {x, rows}), 0}; }

  struct Routing {
    Value weights, experts, scores, lse;
  };
  // The k experts of each row of logits f32[T, E]; scoring: "softmax" or "sigmoid".
  Routing top_k(Value logits, int64_t k, const std::string& scoring, bool renormalize);
  struct Groups {
    Value places, offsets, counts;
  };
  Groups group_rows(Value experts, int64_t groups);  // experts i32[T, K]
  Value dispatch_rows(Value x, Value places) { return {emit(Op::kDispatchRows, {x, places}), 0}; }
  Value combine_rows(Value rows, Value places, Value weights) {
    return {emit(Op::kCombineRows, {rows, places, weights}), 0};
  }
  // Rows of expert e by its weights: those of all are one matrix [experts out, in] named "<name>.weight".
  Value grouped_linear(Value rows, Value offsets, const std::string& name, int64_t out, double std);
  Value segment_mean(Value x, Value segments) { return {emit(Op::kSegmentMean, {x, segments}), 0}; }

  // Any op by enum: what passes and gradient rules use for the rest. Returns the node; results are {node, i}.
  NodeId emit(Op op, std::vector<Value> inputs, Attrs attrs = {}, const std::string& name = "");

  void output(const std::string& name, Value value) { graph_.outputs().push_back({name, value}); }
  void update(const std::string& state, Value value) { graph_.updates().push_back({state, value}); }

 private:
  int64_t new_dropout_key();

  Graph& graph_;
  std::string prefix_;
  int32_t layer_ = -1;
  Phase phase_ = Phase::kForward;
  int64_t next_dropout_key_ = 0;  // unique per dropout site in a graph; 0 = not looked for yet
};

}  // namespace octet
