#include "passes/precision_parts.h"

#include <algorithm>

#include "base/error.h"
#include "ir/nf4.h"

namespace octet {
namespace {

int32_t codes_form(Scaling scaling, bool transposed = false) {
  return (scaling == Scaling::kBlock ? kBlockCodes : kPlainCodes) + (transposed ? kTransposedCodes : kPlainCodes);
}

// quantize of a weight, with its own amax unless the blocks make their scales.
NodeId quantize_weight(Builder& builder, Value master, const Recipe& recipe, Scaling scaling, const std::string& name) {
  if (scaling == Scaling::kBlock) {
    return emit_quantize(builder, master, Value::none(), recipe, ScaleLayout::kTile128, recipe.forward_format, name);
  }
  Value scale = emit_current_scale(builder, master, recipe, recipe.forward_format, name);
  return emit_quantize(builder, master, scale, recipe, ScaleLayout::kTensor, recipe.forward_format, name);
}

// Products with weights that the recipe decides on: those of linears, of experts forward, and of the output head where
// it says so.
bool is_planned_gemm(const Node& node, bool with_head) {
  if (node.op == Op::kGroupedMatmul) return node.attr<std::string>("role") == "fprop";
  if (node.op != Op::kMatmul || !node.attrs.has("gemm") || !node.attrs.has("role")) return false;
  return with_head || !node.attr<bool>("head");
}

// Why this shape cannot run in FP8 on the target, or "". Any number of tokens can: only weight gradients contract over
// them, and a weight has one form in all graphs of a serving program.
std::string unsupported_shape(const GemmPlan& gemm, const Target& target, bool serving) {
  const int64_t group = scale_group(gemm.wanted.weights.layout);
  if (gemm.wanted.scaling == Scaling::kGroup && group > 0 && gemm.k % group != 0)
    return fmt::format("its contraction of {} is not a multiple of {}, the smallest group of one scale", gemm.k, group);
  int64_t align = target.fp8_alignment;
  bool m_fits = serving || gemm.m % align == 0;
  if (align <= 1 || (m_fits && gemm.n % align == 0 && gemm.k % align == 0)) return "";
  return fmt::format("{}x{}x{} (M x N x K) is not a multiple of {} in every dim, as {} needs for FP8", gemm.m, gemm.n,
                     gemm.k, align, target.name);
}

// The group that divides the contraction: halved from the wanted one down to 32.
ScaleLayout fitting_group(ScaleLayout wanted, int64_t k) {
  for (const ScaleLayout layout : {ScaleLayout::kRow128, ScaleLayout::kRow64})
    if (wanted == layout && k % scale_group(layout) != 0)
      wanted = layout == ScaleLayout::kRow128 ? ScaleLayout::kRow64 : ScaleLayout::kRow32;
  return wanted;
}

// What the recipe wants of a product. A head that nobody decided on has a scale a row beside linears that have groups.
GemmPrecision wanted_precision(const Recipe& recipe, const Node& node, const GemmPlan& gemm) {
  GemmPrecision wanted = recipe.decide(gemm.gemm, gemm.role);
  if (wanted.scaling != Scaling::kGroup) return wanted;
  const bool decided = recipe.decisions.contains(gemm.gemm + "/" + gemm_role_name(gemm.role));
  if (node.attrs.get_or<bool>("head", false) && !decided) return {.codes = true, .scaling = Scaling::kCurrent};
  wanted.weights.layout = fitting_group(wanted.weights.layout, gemm.k);
  return wanted;
}

}  // namespace

Value param_leaf(Graph& graph, const Node& param) {
  const Value known = graph.find_leaf(Op::kParam, param.name);
  return known.exists() ? known : Value{graph.add(param), 0};
}

Value WeightCopies::compute(Builder& builder, const Node& param) {
  const TensorType& type = param.results[0];
  if (type.dtype != DType::kF32 || type.shape.rank() < 2 || recipe_.compute == DType::kF32)
    return param_leaf(builder.graph(), param);
  if (const auto codes = in_codes_.find(param.name); codes != in_codes_.end()) {
    const QuantizedValue stored = stored_codes(builder, param, codes->second);
    return {
        builder.emit(Op::kDequantize, {stored.codes, stored.scale_inv},
                     {{"scaling", scale_layout_name(stored.layout)}, {"to", dtype_name(recipe_.compute)}}, param.name),
        0};
  }
  Node copy = param;
  copy.results[0].dtype = recipe_.compute;
  if (!has_master(param)) {
    for (StateEntry& entry : program_.states()) {
      if (entry.role == StateRole::kMaster && entry.param == param.name) entry.type = copy.results[0];
    }
    return param_leaf(builder.graph(), copy);
  }
  Request& request = requests_[param.name];
  request.param = param;
  request.compute = true;
  return declare_state(program_, builder, {.type = copy.results[0], .role = StateRole::kCompute, .param = param.name});
}

Value WeightCopies::from_nf4(Builder& builder, const Node& param, int64_t ranks) {
  const Shape& shape = param.results[0].shape;
  const std::string& split = param.attr<std::string>("split");
  const bool cut = ranks > 1 && split != "none";
  const int64_t columns = cut && split == "row" ? ranks : 1;
  check(!cut || shape[1] % (kNf4Block * columns) == 0, ErrorCode::kInvalidArgument,
        "adapter.base=nf4, parallel.tensor={}: a rank's part of {} {} has rows of {} values, which are no whole blocks "
        "of {}: use fewer ranks, or another adapter.base",
        ranks, param.name, to_string(shape), shape[1] / columns, kNf4Block);
  const int64_t group = nf4_group(shape, param.attr<int64_t>("nf4"), columns);
  const Nf4Shapes beside = nf4_shapes(shape, group);
  const Value codes = state(builder, param, StateRole::kCodes, {DType::kI4, shape});
  builder.graph().mutable_node(codes.node).attrs = param.attrs;
  const auto part = [&](StateRole role, DType dtype, const Shape& part_shape) {
    return state(builder, param, role, {dtype, part_shape});
  };
  return {builder.emit(Op::kDequantizeNf4,
                       {codes, part(StateRole::kMagnitudes, DType::kI8, beside.magnitudes),
                        part(StateRole::kMagnitudeScales, DType::kF32, beside.scales),
                        part(StateRole::kMagnitudeOffsets, DType::kF32, beside.offsets)},
                       {{"group", group}, {"to", dtype_name(recipe_.compute)}}, param.name),
          0};
}

Value WeightCopies::state(Builder& builder, const Node& param, StateRole role, TensorType type, int32_t form) {
  return declare_state(program_, builder,
                       {.type = std::move(type),
                        .role = role,
                        .param = param.name,
                        .index = form,
                        .update = training_ && is_frozen(param) ? Update::kNone : Update::kDense});
}

// States in the param's place, and how the loader makes them.
QuantizedValue WeightCopies::stored_codes(Builder& builder, const Node& param, const GemmPrecision& used) {
  const bool groups = used.scaling == Scaling::kGroup;
  // In training one a tensor: dgrad contracts over the rows.
  const ScaleLayout layout = groups                                      ? used.weights.layout
                             : used.scaling == Scaling::kBlock           ? ScaleLayout::kTile128
                             : recipe_.per_channel_weights && !training_ ? ScaleLayout::kRow
                                                                         : ScaleLayout::kTensor;
  const Shape& shape = param.results[0].shape;
  const Shape scales = scale_shape(layout, shape[0], shape[1]);
  const DType format = groups ? used.weights.format : recipe_.forward_format;
  const Value codes = state(builder, param, StateRole::kCodes, {format, shape});
  Attrs& made = builder.graph().mutable_node(codes.node).attrs;
  made = param.attrs;  // with what initial values are made from
  made.set("scaling", scale_layout_name(layout));
  made.set("margin", recipe_.margin);
  made.set("pow2", layout == ScaleLayout::kTile128 || recipe_.power_of_two);
  QuantizedValue value{codes, state(builder, param, StateRole::kScaleInv, {DType::kF32, scales}), layout};
  if (groups && used.weights.zero_points) value.zero = state(builder, param, StateRole::kZero, {DType::kI8, scales});
  if (groups && used.weights.sorted_columns)
    value.columns = state(builder, param, StateRole::kColumns, {DType::kI32, {shape[1]}});
  return value;
}

QuantizedValue WeightCopies::codes(Builder& builder, const Node& param, const GemmPrecision& used, bool transposed) {
  check(training_ || !transposed, ErrorCode::kUnsupported,
        "{}: an inference program holds weights in codes as [out, in] only", param.name);
  const bool stored = !has_master(param);
  if (stored && !transposed) return stored_codes(builder, param, used);
  const Scaling scaling = used.scaling;
  const bool block = scaling == Scaling::kBlock;
  if (transposed && (stored || !recipe_.keep_transposes)) {
    QuantizedValue kept = codes(builder, param, used, false);
    kept.codes = builder.transpose(kept.codes);
    if (block) kept.scale_inv = builder.transpose(kept.scale_inv);
    return kept;
  }
  Request& request = requests_[param.name];
  request.param = param;
  Form& form = block ? request.block : request.tensor;
  (transposed ? form.transposed : form.plain) = true;
  const ScaleLayout layout = block ? ScaleLayout::kTile128 : ScaleLayout::kTensor;
  const Shape& shape = param.results[0].shape;
  const auto turned = [&](bool turn) { return turn ? Shape{shape[1], shape[0]} : shape; };
  const Value codes = state(builder, param, StateRole::kCodes, {recipe_.forward_format, turned(transposed)},
                            codes_form(scaling, transposed));
  // Scales of tiles are transposed with them; one scale serves both.
  const Shape scaled = turned(transposed && block);
  return {codes,
          state(builder, param, StateRole::kScaleInv, {DType::kF32, scale_shape(layout, scaled[0], scaled[1])},
                codes_form(scaling, transposed && block)),
          layout};
}

void WeightCopies::emit_codes(Builder& builder, const std::string& param, Scaling scaling, const Form& form,
                              Value master) {
  if (!form.plain && !form.transposed) return;
  bool block = scaling == Scaling::kBlock;
  NodeId node = quantize_weight(builder, master, recipe_, scaling, param);
  const auto update = [&](bool wanted, StateRole role, bool transposed, int32_t result) {
    if (wanted) builder.update(state_name(role, param, codes_form(scaling, transposed)), {node, result});
  };
  update(form.plain, StateRole::kCodes, false, kCodes);
  update(form.plain || !block, StateRole::kScaleInv, false, kScaleInv);
  update(form.transposed, StateRole::kCodes, true, kCodesT);
  update(form.transposed && block, StateRole::kScaleInv, true, kScaleInvT);
}

void WeightCopies::emit_copies(Builder& builder, const std::string& param, const Request& request, Value master) {
  if (request.compute) {
    const std::string copy = state_name(StateRole::kCompute, param, 0, recipe_.compute);
    Attrs attrs = {{"to", dtype_name(recipe_.compute)}};
    builder.update(copy, {builder.emit(Op::kCast, {master}, std::move(attrs), copy), 0});
  }
  emit_codes(builder, param, Scaling::kCurrent, request.tensor, master);
  emit_codes(builder, param, Scaling::kBlock, request.block, master);
}

void WeightCopies::drop_unread_params() {
  Program kept;
  kept.name = program_.name;
  for (StateEntry& entry : program_.states()) {
    const bool held = training_ && entry.update != Update::kNone;
    const bool read =
        held || entry.role != StateRole::kMaster || std::ranges::any_of(program_.graphs(), [&](const Graph& graph) {
          return graph.find_leaf(Op::kParam, entry.name).exists();
        });
    if (read) kept.add_state(std::move(entry));
  }
  for (Graph& graph : program_.graphs()) kept.add_graph(std::move(graph));
  program_ = std::move(kept);
}

void WeightCopies::refresh() {
  if (requests_.empty()) return;
  Graph prepare(GraphRole::kPrepare);
  Builder builder(prepare);
  builder.set_phase(Phase::kOptimizer);
  for (const auto& [param, request] : requests_) {
    Node leaf = request.param;
    leaf.phase = Phase::kOptimizer;
    emit_copies(builder, param, request, {prepare.add(std::move(leaf)), 0});
  }
  prepare.set_stage(Stage::kPrecise);
  program_.add_graph(std::move(prepare));
  Graph* apply = program_.find_graph(GraphRole::kApply);
  if (apply == nullptr) return;
  Builder extend(*apply);
  extend.set_phase(Phase::kOptimizer);
  for (const auto& [param, request] : requests_) {
    const auto update = std::ranges::find(apply->updates(), param, &NamedValue::name);
    if (update != apply->updates().end()) emit_copies(extend, param, request, update->value);
  }
}

Value DelayedScales::state(Builder& builder, StateRole role, const std::string& key, int64_t size, double initial) {
  return declare_state(program_, builder,
                       {.type = {DType::kF32, {size}}, .role = role, .param = key, .initial = initial});
}

Value DelayedScales::scale(Builder& builder, const std::string& key, DType format) {
  formats_[key] = format;
  return state(builder, StateRole::kScale, key, 1, 1);
}

void DelayedScales::record(Builder& builder, const std::string& key, Value amax, bool first) {
  program_.add_state({.type = {DType::kF32, {1}}, .role = StateRole::kAmax, .param = key});
  builder.update(state_name(StateRole::kAmax, key),
                 first ? amax : builder.maximum(state(builder, StateRole::kAmax, key), amax));
}

void DelayedScales::advance() {
  Graph* apply = program_.find_graph(GraphRole::kApply);
  if (apply == nullptr) return;
  Builder builder(*apply);
  builder.set_phase(Phase::kOptimizer);
  std::vector<Value> finite;  // of the step: a skipped one leaves the histories, whose amaxes may be finite and huge
  for (int32_t i = 0; i < apply->size(); ++i) {
    if (apply->node(NodeId{i}).op == Op::kClipFactor) finite = {{NodeId{i}, 2}};
  }
  for (const auto& [key, format] : formats_) {
    const Value history = state(builder, StateRole::kAmaxHistory, key, recipe_.amax_history_length);
    const Value amax = state(builder, StateRole::kAmax, key);
    Attrs attrs = {{"format", dtype_name(format)},
                   {"margin", recipe_.margin},
                   {"pow2", recipe_.power_of_two},
                   {"algo", recipe_.history_max ? "max" : "most_recent"}};
    std::vector<Value> inputs = {history, amax};
    inputs.insert(inputs.end(), finite.begin(), finite.end());
    NodeId node = builder.emit(Op::kUpdateScales, std::move(inputs), std::move(attrs), key);
    builder.update(state_name(StateRole::kAmaxHistory, key), {node, 0});
    builder.update(state_name(StateRole::kScale, key), {node, 1});
  }
}

Value emit_current_scale(Builder& builder, Value x, const Recipe& recipe, DType format, const std::string& name) {
  Value amax{builder.emit(Op::kReduce, {x}, {{"reduction", "amax"}, {"axis", "all"}}, name + ".amax"), 0};
  NodeId scale = builder.emit(
      Op::kComputeScale, {amax},
      {{"format", dtype_name(format)}, {"margin", recipe.margin}, {"pow2", recipe.power_of_two}}, name + ".scale");
  return {scale, 0};
}

NodeId emit_quantize(Builder& builder, Value x, Value scale, const Recipe& recipe, ScaleLayout layout, DType format,
                     const std::string& name) {
  Attrs attrs = {{"format", dtype_name(format)}, {"scaling", scale_layout_name(layout)}};
  if (layout == ScaleLayout::kTensor) return builder.emit(Op::kQuantize, {x, scale}, std::move(attrs), name);
  attrs.set("margin", recipe.margin);
  attrs.set("pow2", layout != ScaleLayout::kRow || recipe.power_of_two);
  return builder.emit(Op::kQuantize, {x}, std::move(attrs), name);
}

Value emit_tensor_stats(Builder& builder, Value x, const Recipe& recipe, DType format, bool tiles,
                        const std::string& name) {
  Attrs attrs = {{"format", dtype_name(format)},
                 {"blocks", tiles ? "128x128" : "1x128"},
                 {"margin", recipe.margin},
                 {"pow2", recipe.power_of_two}};
  return {builder.emit(Op::kTensorStats, {x}, std::move(attrs), name), 0};
}

DType quantized_format(const Recipe& recipe, Quantization quantization) {
  return quantization.gradient && quantization.scaling != Scaling::kBlock ? recipe.gradient_format
                                                                          : recipe.forward_format;
}

PrecisionPlan plan_precision(const Graph& graph, const CompileOptions& options, bool serving) {
  PrecisionPlan plan;
  std::unordered_map<std::string, Value> activations;  // the x of each linear
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    if (!is_planned_gemm(node, serving && options.recipe.head)) continue;
    GemmPlan gemm;
    gemm.gemm = node.attr<std::string>("gemm");
    gemm.role = parse_gemm_role(node.attr<std::string>("role"));
    const Shape& a = graph.shape(node.inputs[0]);
    gemm.m = node.results[0].shape.rows();
    gemm.n = node.results[0].shape.cols();
    const bool grouped = node.op == Op::kGroupedMatmul;
    gemm.k = !grouped && node.attr<bool>("trans_a") ? a.rows() : a.cols();
    gemm.wanted = wanted_precision(options.recipe, node, gemm);
    gemm.used = gemm.wanted;
    if (gemm.wanted.codes && is_nf4(graph.node(node.inputs[1])))
      gemm.reason = "its weight is held in NF4, which is multiplied in the compute type";
    else if (gemm.wanted.codes)
      gemm.reason = unsupported_shape(gemm, options.target, serving);
    if (grouped && gemm.wanted.codes && gemm.wanted.scaling == Scaling::kBlock && gemm.n % 128 != 0)
      gemm.reason = fmt::format("experts of {} rows are not whole blocks of 128", gemm.n);
    if (!gemm.reason.empty()) gemm.used = {};
    if (gemm.role == GemmRole::kFprop) activations.emplace(gemm.gemm, node.inputs[0]);
    for (int side = 0; side < 2; ++side) {
      Value value = node.inputs[static_cast<size_t>(side)];
      auto x = activations.find(gemm.gemm);
      bool forward = gemm.role == GemmRole::kFprop || (x != activations.end() && x->second == value);
      OperandKind kind = graph.node(value).op == Op::kParam ? OperandKind::kWeight
                         : forward                          ? OperandKind::kActivation
                                                            : OperandKind::kGradient;
      gemm.kinds[side] = kind;
      if (kind == OperandKind::kWeight) {
        gemm.operands[side] = graph.node(value).name;
        continue;
      }
      bool gradient = kind == OperandKind::kGradient;
      gemm.operands[side] = plan.keys.emplace(value, gemm.gemm + (gradient ? ".dy" : ".x")).first->second;
      const bool as_it_is = gemm.used.scaling == Scaling::kGroup && !is_code(options.recipe.forward_format);
      if (gemm.used.codes && !as_it_is) plan.quantizations[value].insert({gemm.used.scaling, gradient});
    }
    plan.gemms.emplace(i, std::move(gemm));
  }
  return plan;
}

}  // namespace octet
