#include "passes/precision_scales.h"

namespace octet {

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
  for (const auto& [key, format] : formats_) {
    const Value history = state(builder, StateRole::kAmaxHistory, key, recipe_.amax_history_length);
    const Value amax = state(builder, StateRole::kAmax, key);
    Attrs attrs = {{"format", std::string(dtype_name(format))},
                   {"margin", recipe_.margin},
                   {"pow2", recipe_.power_of_two},
                   {"algo", std::string(recipe_.history_max ? "max" : "most_recent")}};
    NodeId node = builder.emit(Op::kUpdateScales, {history, amax}, std::move(attrs), key);
    builder.update(state_name(StateRole::kAmaxHistory, key), {node, 0});
    builder.update(state_name(StateRole::kScale, key), {node, 1});
  }
}

}  // namespace octet
