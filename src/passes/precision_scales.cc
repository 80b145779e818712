#include "passes/precision_scales.h"

namespace octet {

TensorType DelayedScales::declare(const std::string& name, StateKind kind, int64_t size, double initial) {
  TensorType type{DType::kF32, {size}};
  program_.add_state({.name = name, .type = type, .kind = kind, .initial = initial});
  return type;
}

Value DelayedScales::scale(Builder& builder, const std::string& key, DType format) {
  formats_[key] = format;
  const std::string name = "scale." + key;
  return builder.state(name, declare(name, StateKind::kScale, 1, 1));
}

void DelayedScales::record(Builder& builder, const std::string& key, Value amax, bool first) {
  const std::string name = "amax." + key;
  const TensorType type = declare(name, StateKind::kGradient, 1, 0);
  builder.update(name, first ? amax : builder.maximum(builder.state(name, type), amax));
}

void DelayedScales::advance() {
  Graph* apply = program_.find_graph("apply");
  if (apply == nullptr) return;
  Builder builder(*apply);
  builder.set_phase(Phase::kOptimizer);
  for (const auto& [key, format] : formats_) {
    const std::string past = "amax_history." + key, seen = "amax." + key;
    const Value history = builder.state(past, declare(past, StateKind::kScale, recipe_.amax_history_length, 0));
    const Value amax = builder.state(seen, declare(seen, StateKind::kGradient, 1, 0));
    Attrs attrs = {{"format", std::string(dtype_name(format))},
                   {"margin", recipe_.margin},
                   {"pow2", recipe_.power_of_two},
                   {"algo", std::string(recipe_.history_max ? "max" : "most_recent")}};
    NodeId node = builder.emit(Op::kUpdateScales, {history, amax}, std::move(attrs), key);
    builder.update("amax_history." + key, {node, 0});
    builder.update("scale." + key, {node, 1});
  }
}

}  // namespace octet
