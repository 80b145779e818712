#include "passes/precision_weights.h"

#include <algorithm>

#include "base/error.h"

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

}  // namespace

WeightCopies::WeightCopies(Program& program, const Recipe& recipe, bool keep_masters)
    : program_(program), recipe_(recipe), keep_masters_(keep_masters) {}

Value WeightCopies::compute(Builder& builder, const Node& param) {
  TensorType type = param.results[0];
  if (type.dtype != DType::kF32 || type.shape.rank() < 2 || recipe_.compute == DType::kF32) {
    return builder.graph().find_leaf(Op::kParam, param.name).exists()
               ? builder.graph().find_leaf(Op::kParam, param.name)
               : Value{builder.graph().add(param), 0};
  }
  TensorType copy{recipe_.compute, type.shape};
  if (!keep_masters_) {
    Value leaf = builder.graph().find_leaf(Op::kParam, param.name);
    if (leaf.exists()) return leaf;
    for (StateEntry& entry : program_.states()) {
      if (entry.role == StateRole::kMaster && entry.param == param.name) entry.type = copy;
    }
    Node retyped = param;
    retyped.results[0] = copy;
    return {builder.graph().add(std::move(retyped)), 0};
  }
  Request& request = requests_[param.name];
  request.param = param;
  request.compute = true;
  return declare_state(program_, builder, {.type = copy, .role = StateRole::kCompute, .param = param.name});
}

// States in the param's place, and how the loader makes them.
QuantizedValue WeightCopies::stored_codes(Builder& builder, const Node& param, Scaling scaling, bool transposed) {
  check(!transposed, ErrorCode::kUnsupported, "{}: an inference program holds FP8 weights as [out, in] only",
        param.name);
  ScaleLayout layout = scaling == Scaling::kBlock    ? ScaleLayout::kTile128
                       : recipe_.per_channel_weights ? ScaleLayout::kRow
                                                     : ScaleLayout::kTensor;
  bool pow2 = layout == ScaleLayout::kTile128 || recipe_.power_of_two;
  Graph scratch;
  Builder trial(scratch);
  Value master = trial.input("master", param.results[0]);
  Value scale = layout == ScaleLayout::kTensor ? trial.constant(1, {1}) : Value::none();
  NodeId node = emit_quantize(trial, master, scale, recipe_, layout, recipe_.forward_format, param.name);
  const auto state = [&](StateRole role, int32_t result) {
    return declare_state(program_, builder, {.type = scratch.type({node, result}), .role = role, .param = param.name});
  };
  const Value codes = state(StateRole::kCodes, kCodes);
  Attrs& made = builder.graph().mutable_node(codes.node).attrs;
  made = param.attrs;  // with what initial values are made from
  made.set("scaling", std::string(scale_layout_name(layout)));
  made.set("margin", recipe_.margin);
  made.set("pow2", pow2);
  return {codes, state(StateRole::kScaleInv, kScaleInv), layout};
}

QuantizedValue WeightCopies::codes(Builder& builder, const Node& param, Scaling scaling, bool transposed) {
  if (!keep_masters_) return stored_codes(builder, param, scaling, transposed);
  if (transposed && !recipe_.keep_transposes) {
    QuantizedValue kept = codes(builder, param, scaling, false);
    kept.codes = builder.transpose(kept.codes);
    if (scaling == Scaling::kBlock) kept.scale_inv = builder.transpose(kept.scale_inv);
    return kept;
  }
  Request& request = requests_[param.name];
  request.param = param;
  Form& form = scaling == Scaling::kBlock ? request.block : request.tensor;
  (transposed ? form.transposed : form.plain) = true;

  // The types of the copies are whatever quantize makes of the master.
  Graph scratch;
  Builder trial(scratch);
  NodeId node = quantize_weight(trial, trial.input("master", param.results[0]), recipe_, scaling, param.name);
  bool own_scale = transposed && scaling == Scaling::kBlock;  // of tiles: the transpose of the plain ones
  const auto state = [&](StateRole role, int32_t result, bool of_transpose) {
    return declare_state(program_, builder,
                         {.type = scratch.type({node, result}),
                          .role = role,
                          .param = param.name,
                          .index = codes_form(scaling, of_transpose)});
  };
  const Value codes = state(StateRole::kCodes, transposed ? kCodesT : kCodes, transposed);
  return {codes, state(StateRole::kScaleInv, own_scale ? kScaleInvT : kScaleInv, own_scale),
          scaling == Scaling::kBlock ? ScaleLayout::kTile128 : ScaleLayout::kTensor};
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
    Attrs attrs = {{"to", std::string(dtype_name(recipe_.compute))}};
    builder.update(copy, {builder.emit(Op::kCast, {master}, std::move(attrs), copy), 0});
  }
  emit_codes(builder, param, Scaling::kCurrent, request.tensor, master);
  emit_codes(builder, param, Scaling::kBlock, request.block, master);
}

void WeightCopies::drop_unread_params() {
  Program kept;
  kept.name = program_.name;
  for (StateEntry& entry : program_.states()) {
    bool read = entry.role != StateRole::kMaster ||
                std::any_of(program_.graphs().begin(), program_.graphs().end(),
                            [&](const Graph& graph) { return graph.find_leaf(Op::kParam, entry.name).exists(); });
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
    for (size_t i = 0; i < apply->updates().size(); ++i) {
      if (apply->updates()[i].name != param) continue;
      emit_copies(extend, param, request, apply->updates()[i].value);
      break;
    }
  }
}

}  // namespace octet
