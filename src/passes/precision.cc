#include "passes/passes.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/rewrite.h"
#include "ir/text.h"
#include "passes/precision_parts.h"

namespace octet {

bool is_model_graph(const Graph& graph) {
  return graph.role() != GraphRole::kApply && graph.role() != GraphRole::kPrepare;
}

namespace {

bool measures(const Graph& graph) { return graph.role() == GraphRole::kTrainStats; }

bool records_amax(const Graph& graph) {
  return graph.role() == GraphRole::kTrain || graph.role() == GraphRole::kAccumulate || measures(graph);
}

// Values that must be made in float32: what a float32 state is updated with, back through linear ops to the products.
std::vector<bool> high_nodes(const Graph& graph) {
  std::vector<bool> high(static_cast<size_t>(graph.size()), false);
  for (const NamedValue& update : graph.updates()) {
    if (graph.dtype(update.value) == DType::kF32) high[slot(update.value.node)] = true;
  }
  for (int32_t i = graph.size() - 1; i >= 0; --i) {
    const Node& node = graph.node(NodeId{i});
    if (!high[static_cast<size_t>(i)]) continue;
    const uint32_t linear = op_facts(node.op).linear;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const bool passes_on = (linear >> std::min(k, size_t{31}) & 1U) != 0;  // a concat of more: all of them
      if (passes_on && node.inputs[k].exists()) high[slot(node.inputs[k].node)] = true;
    }
  }
  return high;
}

// Rewrites one model graph.
class PreciseGraph {
 public:
  // `serving`: no token's codes may depend on another's.
  PreciseGraph(const Graph& graph, bool serving, Program& program, const CompileOptions& options,
               const PrecisionPlan& plan, WeightCopies& weights, DelayedScales& scales)
      : old_(graph),
        serving_(serving),
        rewriter_(graph),
        builder_(rewriter_.builder()),
        program_(program),
        recipe_(options.recipe),
        target_(options.target),
        plan_(plan),
        weights_(weights),
        scales_(scales),
        high_(high_nodes(graph)),
        tensor_ranks_(options.parallel.mesh[Axis::kTensor]) {}

  Graph run() {
    for (int32_t i = 0; i < old_.size(); ++i) {
      const Node& node = old_.node(NodeId{i});
      builder_.set_layer(node.layer);
      builder_.set_phase(node.phase);
      phase_ = node.phase;
      if (node.op == Op::kParam) continue;  // read in the form each user needs
      if (node.op == Op::kState) {
        copy_state(NodeId{i});
      } else if (auto gemm = plan_.gemms.find(i); gemm != plan_.gemms.end()) {
        convert_gemm(NodeId{i}, gemm->second);
      } else {
        convert(NodeId{i});
      }
    }
    for (const NamedValue& update : old_.updates()) {
      map_param(update.value);
      DType wanted = state_type(update.name, old_.type(update.value)).dtype;
      Value value = rewriter_.map(update.value);
      if (rewriter_.graph().dtype(value) != wanted) rewriter_.set(update.value, builder_.cast(value, wanted));
    }
    for (const NamedValue& output : old_.outputs()) map_param(output.value);
    Graph result = rewriter_.finish();
    result.set_stage(Stage::kPrecise);
    return result;
  }

 private:
  TensorType state_type(const std::string& name, const TensorType& fallback) const {
    const StateEntry* entry = program_.find_state(name);
    return entry != nullptr ? entry->type : fallback;
  }

  // KV caches were retyped in the state table; other states keep their type.
  void copy_state(NodeId id) {
    Node node = old_.node(id);
    node.results[0] = state_type(node.name, node.results[0]);
    rewriter_.replace(id, std::move(node));
  }

  // Of a matrix in NF4 forward and backward have values of their own: none are kept in between.
  void map_param(Value value) {
    if (!value.exists() || old_.node(value).op != Op::kParam) return;
    const Node& param = old_.node(value);
    if (is_of_rows(value)) return rewriter_.set(value, param_leaf(rewriter_.graph(), param));
    if (is_nf4(param)) {
      const auto [found, added] = from_nf4_.try_emplace({param.name, phase_});
      if (added) found->second = weights_.from_nf4(builder_, param, tensor_ranks_);
      return rewriter_.set(value, found->second);
    }
    if (rewriter_.is_mapped(value)) return;
    rewriter_.set(value, weights_.compute(builder_, old_.node(value)));
  }

  // A table whose gradient is rows has no copy, which would be made of all of it: what is looked up is rounded.
  bool is_of_rows(Value value) const {
    return value.exists() && old_.node(value).op == Op::kParam &&
           program_.find_state(old_.node(value).name)->update == Update::kRows;
  }

  // A float operand in `dtype`; the cast is made once per value.
  Value as(Value old_value, DType dtype) {
    map_param(old_value);
    Value value = rewriter_.map(old_value);
    if (rewriter_.graph().dtype(value) == dtype) return value;
    auto [it, added] = casts_.try_emplace(value);
    if (added) it->second = builder_.cast(value, dtype);
    return it->second;
  }

  // The inputs that must share one type: of products and of same-shaped elementwise operands.
  static size_t paired_inputs(const Graph& graph, const Node& node) {
    if (node.op == Op::kConcat) return node.inputs.size();
    bool pair = node.inputs.size() == 2 && op_facts(node.op).elementwise && node.op != Op::kDropout;
    return pair && graph.shape(node.inputs[0]) == graph.shape(node.inputs[1]) ? 2 : 0;
  }

  static bool is_product(const Node& node) {
    return node.op == Op::kMatmul || node.op == Op::kGroupedMatmul || node.op == Op::kGroupedMatmulWgrad;
  }

  void convert(NodeId id) {
    const Node& node = old_.node(id);
    if (is_product(node)) return plain_product(id);
    for (Value input : node.inputs) map_param(input);
    size_t paired = paired_inputs(old_, node);
    bool mixed = false;
    for (size_t i = 1; i < paired; ++i) {
      mixed |= rewriter_.graph().dtype(rewriter_.map(node.inputs[i])) !=
               rewriter_.graph().dtype(rewriter_.map(node.inputs[0]));
    }
    Node copy = rewriter_.mapped(id);
    if (mixed) {
      DType dtype = high_[slot(id)] ? DType::kF32 : recipe_.compute;
      for (size_t i = 0; i < paired; ++i) copy.inputs[i] = as(node.inputs[i], dtype);
    }
    if (is_norm_grad(node.op))  // dy has the type of x, also where a router's float32 product adds to it
      copy.inputs.back() = as(node.inputs.back(), rewriter_.graph().dtype(copy.inputs[0]));
    const bool of_rows = std::ranges::any_of(node.inputs, [&](Value input) { return is_of_rows(input); });
    const NodeId made = rewriter_.replace(id, std::move(copy));
    if (of_rows && recipe_.compute != DType::kF32) rewriter_.set({id, 0}, builder_.cast({made, 0}, recipe_.compute));
  }

  // A product keeps float32 where a float32 state is made from it (weight gradients), else the compute type.
  DType product_type(NodeId id) const {
    const Node& node = old_.node(id);
    if (node.op == Op::kGroupedMatmulWgrad || keeps_float32(node)) return DType::kF32;
    bool weight = node.attr<std::string>("to") == "f32";  // set by the gradient rule
    return weight || high_[slot(id)] ? DType::kF32 : recipe_.compute;
  }

  // A router's product.
  static bool keeps_float32(const Node& node) { return node.op == Op::kMatmul && node.attr<bool>("float32"); }

  void plain_product(NodeId id) {
    Node copy = old_.node(id);
    const bool float32 = keeps_float32(copy);
    const DType type = product_type(id);
    for (Value input : float32 ? std::vector<Value>() : copy.inputs) map_param(input);
    const size_t c = copy.op == Op::kGroupedMatmul ? 0 : static_cast<size_t>(operand_index(copy.op, "c"));
    for (size_t i = 0; i < copy.inputs.size(); ++i) {
      Value& input = copy.inputs[i];
      if (!input.exists()) continue;
      if (float32 && old_.node(input).op == Op::kParam) {
        input = param_leaf(rewriter_.graph(), old_.node(input));
      } else if (i < 2 || i == c) {
        input = as(input, i < 2 && !float32 ? recipe_.compute : type);
      } else {
        input = rewriter_.map(input);
      }
    }
    if (copy.op != Op::kGroupedMatmulWgrad) copy.attrs.set("to", dtype_name(type));
    rewriter_.replace(id, std::move(copy));
  }

  void convert_gemm(NodeId id, const GemmPlan& gemm) {
    const Node& node = old_.node(id);
    for (size_t side = 0; side < 2; ++side) {
      if (measures(old_)) measure(node.inputs[side], gemm.kinds[side], gemm.operands[side]);
      quantize_all(node.inputs[side]);
    }
    if (!gemm.used.codes) {
      return plain_product(id);
    }
    const bool grouped = node.op == Op::kGroupedMatmul;
    bool trans_a = !grouped && node.attr<bool>("trans_a"), trans_b = node.attr<bool>("trans_b");
    QuantizedValue a = operand(node.inputs[0], gemm, 0, /*along_rows=*/trans_a);
    if (flipped_) trans_a = !trans_a;
    QuantizedValue b = operand(node.inputs[1], gemm, 1, /*along_rows=*/!trans_b);
    if (flipped_) trans_b = !trans_b;
    if (b.columns.exists())
      a.codes = {builder_.emit(Op::kTakeColumns, {a.codes, b.columns}, {}, node.name + ".columns"), 0};
    std::vector<Value> inputs = {a.codes, a.scale_inv, b.codes, b.scale_inv};
    DType type = product_type(id);
    Attrs attrs = node.attrs;
    if (grouped) {
      inputs.push_back(rewriter_.map(node.operand("offsets")));
      if (b.zero.exists()) inputs.push_back(b.zero);
    } else {
      const Value c = node.operand("c");
      if (c.exists() || b.zero.exists()) inputs.push_back(c.exists() ? as(c, type) : c);
      if (b.zero.exists()) inputs.push_back(b.zero);
      attrs.set("trans_a", trans_a);
    }
    attrs.set("trans_b", trans_b);
    attrs.set("scaling_a", scale_layout_name(a.layout));
    attrs.set("scaling_b", scale_layout_name(b.layout));
    attrs.set("to", dtype_name(type));
    const Op op = grouped ? Op::kScaledGroupedMatmul : Op::kScaledMatmul;
    rewriter_.set({id, 0}, {builder_.emit(op, std::move(inputs), std::move(attrs), node.name), 0});
  }

  // Codes of one side of a GEMM. Sets flipped_ when they are the transposed ones: 1x128 blocks must run along the
  // contraction, and some targets want the contraction contiguous.
  QuantizedValue operand(Value value, const GemmPlan& gemm, int side, bool along_rows) {
    OperandKind kind = gemm.kinds[side];
    Scaling scaling = gemm.used.scaling;
    if (kind == OperandKind::kWeight) {
      flipped_ = along_rows && target_.fp8_tn_only;
      return weights_.codes(builder_, old_.node(value), gemm.used, flipped_);
    }
    if (scaling == Scaling::kGroup && !is_code(recipe_.forward_format)) {
      flipped_ = false;
      return {as(value, recipe_.compute), builder_.constant(1, {1}, DType::kF32)};
    }
    bool block = scaling == Scaling::kBlock;
    flipped_ = along_rows && (target_.fp8_tn_only || block);
    NodeId node = quantized_.at(value).at({scaling, kind == OperandKind::kGradient});
    return {{node, flipped_ ? kCodesT : kCodes}, {node, flipped_ && block ? kScaleInvT : kScaleInv}, layout(scaling)};
  }

  // Emits every quantization the plan has for this tensor, at its first GEMM: in forward for what backward reads, so
  // that the codes are what is kept.
  void quantize_all(Value value) {
    auto wanted = plan_.quantizations.find(value);
    if (wanted == plan_.quantizations.end() || quantized_.contains(value)) return;
    const std::string& key = plan_.keys.at(value);
    for (Quantization quantization : wanted->second) {
      quantized_[value][quantization] = quantize(value, key, quantization);
    }
  }

  // Statistics of the operand as quantize would read it: weights in float32, which frozen ones are not held in.
  void measure(Value value, OperandKind kind, const std::string& name) {
    bool weight = kind == OperandKind::kWeight;
    if ((weight && is_frozen(old_.node(value))) || !measured_.insert(name).second) return;
    Graph& graph = rewriter_.graph();
    const Value x = weight ? param_leaf(graph, old_.node(value)) : rewriter_.map(value);
    DType format = recipe_.format(kind == OperandKind::kGradient);
    builder_.output("stats." + name, emit_tensor_stats(builder_, x, recipe_, format, /*tiles=*/weight, name));
  }

  // Of activations and gradients.
  ScaleLayout layout(Scaling scaling) const {
    if (scaling == Scaling::kBlock) return ScaleLayout::kRow128;
    return (scaling == Scaling::kCurrent || scaling == Scaling::kGroup) && serving_ ? ScaleLayout::kRow
                                                                                    : ScaleLayout::kTensor;
  }

  NodeId quantize(Value value, const std::string& key, Quantization quantization) {
    DType format = quantized_format(recipe_, quantization);
    ScaleLayout groups = layout(quantization.scaling);
    const Node& maker = old_.node(value.node);
    if (groups == ScaleLayout::kRow && maker.op == Op::kDispatchRows) {  // a token's codes once, then its rows
      const NodeId tokens = quantize(maker.inputs[0], key, quantization);
      const std::vector<Value> rows = {{tokens, kCodes}, rewriter_.map(maker.inputs[1]), {tokens, kScaleInv}};
      return builder_.emit(Op::kDispatchRows, rows, {}, maker.name);
    }
    const Value x = rewriter_.map(value);
    if (groups != ScaleLayout::kTensor) {
      return emit_quantize(builder_, x, Value::none(), recipe_, groups, format, key);
    }
    bool delayed = quantization.scaling == Scaling::kDelayed;
    Value scale =
        delayed ? scales_.scale(builder_, key, format) : emit_current_scale(builder_, x, recipe_, format, key);
    NodeId node = emit_quantize(builder_, x, scale, recipe_, ScaleLayout::kTensor, format, key);
    if (delayed && records_amax(old_))
      scales_.record(builder_, key, {node, kAmax}, /*first=*/old_.role() != GraphRole::kAccumulate);
    return node;
  }

  const Graph& old_;
  bool serving_;
  Rewriter rewriter_;
  Builder& builder_;
  Program& program_;
  const Recipe& recipe_;
  const Target& target_;
  const PrecisionPlan& plan_;
  WeightCopies& weights_;
  DelayedScales& scales_;
  std::vector<bool> high_;
  int64_t tensor_ranks_;
  Phase phase_ = Phase::kForward;
  std::unordered_map<Value, Value, ValueHash> casts_;  // by what is cast
  std::map<std::pair<std::string, Phase>, Value> from_nf4_;
  std::unordered_map<Value, std::map<Quantization, NodeId>, ValueHash> quantized_;
  std::set<std::string> measured_;
  bool flipped_ = false;  // what operand() last gave
};

bool changes_nothing(const Program& program, const Recipe& recipe) {
  for (const Graph& graph : program.graphs())
    if (std::ranges::any_of(graph.nodes(), is_nf4)) return false;
  bool decided = std::ranges::any_of(recipe.decisions, [](const auto& decision) { return decision.second.codes; });
  return recipe.compute == DType::kF32 && recipe.scaling == Scaling::kNone && !decided;
}

void mark_tf32(Graph& graph) {
  for (int32_t i = 0; i < graph.size(); ++i) {
    Node& node = graph.mutable_node(NodeId{i});
    if (node.op == Op::kMatmul && !node.attr<bool>("float32")) node.attrs.set("tf32", true);
  }
}

// Frozen parameters that a product of a training program reads in codes: they are held as these alone.
std::map<std::string, GemmPrecision> frozen_in_codes(const Program& program,
                                                     const std::map<std::string, PrecisionPlan>& plans) {
  std::map<std::string, GemmPrecision> names;
  for (const auto& [name, plan] : plans) {
    const Graph& graph = program.graph(name);
    for (const auto& [node, gemm] : plan.gemms) {
      const Node& weight = graph.node(graph.node(NodeId{node}).inputs[1]);
      if (gemm.used.codes && weight.op == Op::kParam && is_frozen(weight) && is_training(program))
        names.emplace(weight.name, gemm.used);
    }
  }
  return names;
}

void make_precise(Program& program, const CompileOptions& options) {
  collect_state(program);
  const Recipe& recipe = options.recipe;
  const bool training = is_training(program);
  if (recipe.has_integer_weights()) {
    check(!training, ErrorCode::kUnsupported, "recipe {} is for inference: train in bf16 or fp8-current", recipe.name);
    const DType codes = recipe.scaling == Scaling::kGroup ? recipe.weights.format : DType::kI8;
    check(options.target.find_product(recipe.forward_format, codes) != nullptr, ErrorCode::kUnsupported,
          "recipe {} has products of {} by {} codes, for which {} has no kernels: choose fp8-current or bf16",
          recipe.name, dtype_name(recipe.forward_format), dtype_name(codes), options.target.name);
  }
  if (const Graph* train = program.find_graph(GraphRole::kTrain); training && recipe.statistics && train != nullptr) {
    Graph copy = *train;
    copy.set_role(GraphRole::kTrainStats);
    program.add_graph(std::move(copy));
  }
  DelayedScales scales(program, recipe);
  std::map<std::string, PrecisionPlan> plans;
  for (const Graph& graph : program.graphs()) {
    if (is_model_graph(graph)) plans.emplace(graph.name(), plan_precision(graph, options, !training));
  }
  WeightCopies weights(program, recipe, training, frozen_in_codes(program, plans));
  for (auto& [name, plan] : plans) {
    const Graph& graph = program.graph(name);
    program.add_graph(PreciseGraph(graph, !training, program, options, plan, weights, scales).run());
  }
  if (training) weights.refresh();
  weights.drop_unread_params();
  scales.advance();
}

}  // namespace

bool precision(Program& program, const CompileOptions& options) {
  const uint64_t before = fingerprint(program);
  const bool unchanged = changes_nothing(program, options.recipe);
  if (!unchanged) make_precise(program, options);
  if (options.recipe.tf32) {
    for (Graph& graph : program.graphs())
      if (is_model_graph(graph)) mark_tf32(graph);
  }
  for (Graph& graph : program.graphs()) graph.set_stage(Stage::kPrecise);
  return fingerprint(program) != before;
}

std::vector<GemmReport> precision_report(const Program& program, const CompileOptions& options) {
  std::vector<GemmReport> reports;
  const bool serving = !is_training(program);
  for (const Graph& graph : program.graphs()) {
    if (!is_model_graph(graph)) continue;
    for (const auto& [node, gemm] : plan_precision(graph, options, serving).gemms)
      reports.push_back({gemm, graph.role()});
  }
  return reports;
}

}  // namespace octet
