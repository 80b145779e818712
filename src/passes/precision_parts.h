// What the precision pass is made of: the plan of a graph, the nodes that quantize, the copies of weights and the
// states behind delayed scaling.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/builder.h"
#include "passes/passes.h"
#include "precision/quantized_matrix.h"

namespace octet {

// One way of quantizing an activation or gradient; the format follows from it.
struct Quantization {
  Scaling scaling = Scaling::kNone;
  bool gradient = false;
  auto operator<=>(const Quantization&) const = default;
};

// What the pass will do to one graph, decided before a node is touched: the precision of every GEMM, and which tensors
// are quantized how. Reports and the rewriting read the same decisions.
struct PrecisionPlan {
  std::map<int32_t, GemmPlan> gemms;  // by node index: every GEMM of a linear
  // How FP8 GEMMs want activations and gradients; the name under which scales and statistics of each are kept.
  std::unordered_map<Value, std::set<Quantization>, ValueHash> quantizations;
  std::unordered_map<Value, std::string, ValueHash> keys;
};

// `serving`: an inference program, whose tokens come in any number.
PrecisionPlan plan_precision(const Graph& graph, const CompileOptions& options, bool serving);

// E4M3 forward; gradients by the recipe, but E4M3 under block scaling.
DType quantized_format(const Recipe& recipe, Quantization quantization);

// A frozen matrix that is held in NF4.
inline bool is_nf4(const Node& leaf) { return leaf.op == Op::kParam && leaf.attrs.has("nf4"); }

// --- the nodes that quantize a tensor, in one place: used for activations, gradients and weights alike

// Results of Op::kQuantize by number.
enum QuantizeResult : int32_t { kCodes = 0, kScaleInv = 1, kCodesT = 2, kScaleInvT = 3, kAmax = 4 };

// The scale f32[1] of x from its own amax, by the recipe's formula.
Value emit_current_scale(Builder& builder, Value x, const Recipe& recipe, DType format, const std::string& name);

// quantize(x); `scale` only with kTensor.
NodeId emit_quantize(Builder& builder, Value x, Value scale, const Recipe& recipe, ScaleLayout layout, DType format,
                     const std::string& name);

// The leaf of a param, made when the graph has none of its name.
Value param_leaf(Graph& graph, const Node& param);

// tensor_stats(x): how x fits `format` under one scale and E4M3 in 128-blocks, 128x128 `tiles` or 1x128.
Value emit_tensor_stats(Builder& builder, Value x, const Recipe& recipe, DType format, bool tiles,
                        const std::string& name);

// --- weights and scales

// One operand in codes: stored codes with the reciprocal scales that belong to them.
struct QuantizedValue {
  Value codes, scale_inv;
  ScaleLayout layout = ScaleLayout::kTensor;
  Value zero = Value::none();     // of integer weights, where they have zero points
  Value columns = Value::none();  // i32 [K]: those of x that the codes' columns belong to; none: in order
};

// Copies of weights in the types that model graphs compute in: who asked for which form, and the nodes that make them.
//
// Model graphs ask (compute copy, FP8 codes) while they are rewritten; refresh() then writes graph "prepare" and
// extends graph "apply", so that both make the same bits from the same master value. Weights are always scaled by their
// own amax: they change once a step, and the copy is shared by every micro-batch and by evaluation. Inference programs
// have no master: codes are states that the loader fills.
class WeightCopies {
 public:
  // `training`: params of rank >= 2 that are not frozen stay float32 and get copies. Others are retyped in place, and
  // those that products read in codes (of which `in_codes` has the frozen ones, and how) are held as codes alone.
  WeightCopies(Program& program, const Recipe& recipe, bool training, std::map<std::string, GemmPrecision> in_codes)
      : program_(program), recipe_(recipe), training_(training), in_codes_(std::move(in_codes)) {}

  // What a model graph reads instead of this param, in the compute type; of codes alone their values.
  Value compute(Builder& builder, const Node& param);
  // The values of a frozen param in NF4, in the compute type. `ranks` of tensor split its rows, or its columns.
  Value from_nf4(Builder& builder, const Node& param, int64_t ranks);
  // The codes of a param [N, K] (transposed: [K, N]), scaled per tensor or per 128x128 block; in inference programs
  // also per row (output channel) or group of a row. Without Recipe::keep_transposes, and of frozen params, transposed
  // ones are made where they are asked for.
  QuantizedValue codes(Builder& builder, const Node& param, const GemmPrecision& used, bool transposed);

  // Adds the nodes that make the copies: graph "prepare", and "apply" where the program has one.
  void refresh();
  // Params that graphs no longer read leave the state table: those held as codes.
  void drop_unread_params();

 private:
  struct Form {  // of codes
    bool plain = false, transposed = false;
  };
  struct Request {
    Node param;  // the leaf, with the attrs initial values are made from
    bool compute = false;
    Form tensor, block;
  };
  // Of the codes of this form (CodesForm), or of their scales.
  Value state(Builder& builder, const Node& param, StateRole role, TensorType type, int32_t form = kPlainCodes);
  bool has_master(const Node& param) const { return training_ && !is_frozen(param); }
  QuantizedValue stored_codes(Builder& builder, const Node& param, const GemmPrecision& used);
  void emit_copies(Builder& builder, const std::string& param, const Request& request, Value master);
  void emit_codes(Builder& builder, const std::string& param, Scaling scaling, const Form& form, Value master);

  Program& program_;
  const Recipe& recipe_;
  bool training_;
  std::map<std::string, GemmPrecision> in_codes_;
  std::map<std::string, Request> requests_;
};

// The states behind delayed scaling: per tensor K a scale, the amax seen since the last step, and a history of amaxes.
//
// Graphs that train record: the first micro-batch of a step its amax, the others the maximum with it. "apply" advances
// the history once a step, evaluation only reads the scale. Scales and histories are saved in checkpoints; the amax is
// a step's own, as gradients are.
class DelayedScales {
 public:
  DelayedScales(Program& program, const Recipe& recipe) : program_(program), recipe_(recipe) {}

  // The scale state of tensor `key`, stored in `format`.
  Value scale(Builder& builder, const std::string& key, DType format);
  // In a graph that read its scale: the recorded amax of `key` becomes `amax` in the first micro-batch of a step, and
  // is raised to it in others.
  void record(Builder& builder, const std::string& key, Value amax, bool first);
  // Extends "apply", where there is one: history and new scale.
  void advance();

 private:
  Value state(Builder& builder, StateRole role, const std::string& key, int64_t size = 1, double initial = 0);

  Program& program_;
  const Recipe& recipe_;
  std::map<std::string, DType> formats_;  // by key
};

}  // namespace octet
