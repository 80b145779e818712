// Filling the states of an executor: from a source of weights, or with fresh values.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "base/threads.h"
#include "exec/quantized_states.h"
#include "infer/weights.h"

namespace octet {
namespace {

void load_scale(const WeightSource& source, const LogicalState& entry, Executor& executor) {
  std::optional<float> value = source.scale(entry.name);
  if (!value && entry.name.starts_with("kv.")) value = 1.0f;
  check(value.has_value(), ErrorCode::kInvalidArgument,
        "the recipe needs {} ({}), a static scale kept from training in fp8-delayed or made by octet quantize; this "
        "folder has none: choose fp8-current",
        entry.name, to_string(entry.type));
  check(std::isfinite(*value) && *value > 0, ErrorCode::kCorrupt, "{} is {}: a scale is positive and finite",
        entry.name, *value);
  write_logical(executor, entry, std::as_bytes(std::span(&*value, 1)));
}

void load_quantized(const WeightSource& source, const QuantizedParam& param, Executor& executor) {
  const Shape& shape = param.codes.type.shape;
  if (auto stored = source.read_codes(param.param, shape, param.rule.layout)) {
    write_quantized(executor, param, *stored);
  } else if (const auto plain = source.stored(param.param)) {
    write_quantized(executor, param,
                    quantize_matrix(plain->type.dtype, plain->bytes, param.rows(), param.cols(), param.rule));
  } else {
    write_quantized(executor, param, source.read(param.param, shape));
  }
}

// Converted in pieces by all threads; as it is where the types agree.
void write_param(Executor& executor, const LogicalState& tensor, DType from, std::span<const std::byte> values) {
  const DType to = tensor.type.dtype;
  if (from == to) return write_logical(executor, tensor, values);
  const int64_t count = tensor.type.shape.elements();
  check(static_cast<int64_t>(values.size()) == count * dtype_bytes(from), ErrorCode::kInternal, "{}: {} bytes of {}",
        tensor.name, values.size(), to_string(tensor.type));
  constexpr int64_t kPiece = int64_t{1} << 24;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kPiece, count) * dtype_bytes(to)));
  for (int64_t at = 0; at < count; at += kPiece) {
    const int64_t length = std::min(kPiece, count - at);
    parallel_for(length, 1 << 16, [&](int64_t begin, int64_t end) {
      convert(from, values.data() + (at + begin) * dtype_bytes(from), to, piece.data() + begin * dtype_bytes(to),
              end - begin);
    });
    executor.write_state_part(tensor.state, tensor.offset + at * dtype_bytes(to),
                              std::span(piece).first(static_cast<size_t>(length * dtype_bytes(to))));
  }
}
void write_param(Executor& executor, const LogicalState& tensor, std::span<const float> values) {
  write_param(executor, tensor, DType::kF32, std::as_bytes(values));
}

void load_param(const WeightSource& source, const LogicalState& tensor, Executor& executor) {
  if (const auto stored = source.stored(tensor.name)) {
    write_param(executor, tensor, stored->type.dtype, stored->bytes);
  } else {
    write_param(executor, tensor, source.read(tensor.name, tensor.type.shape));
  }
}

void prepare(Executor& executor) {
  if (executor.program().find_graph("prepare") != nullptr) executor.run("prepare");
}

// Initial values: node attrs of the param leaf, wherever it appears.
const Node* find_param_node(const Program& program, const std::string& name) {
  for (const Graph& graph : program.graphs()) {
    Value leaf = graph.find_leaf(Op::kParam, name);
    if (leaf.exists()) return &graph.node(leaf);
  }
  return nullptr;
}

std::vector<float> initial_values(const Node& node, int64_t count, uint64_t seed, uint64_t stream) {
  const std::string& init = node.attrs.get<std::string>("init");
  std::vector<float> values(static_cast<size_t>(count), init == "ones" ? 1.0f : 0.0f);
  if (init == "normal") {
    double std = node.attrs.get_or<double>("std", 0.02);
    Philox rng(seed, stream);
    for (float& value : values) value = static_cast<float>(std * rng.normal());
  }
  return values;
}

}  // namespace

void load_weights(const WeightSource& source, Executor& executor) {
  // A training program makes its own scales as it goes (and a checkpoint restores them itself).
  bool needs_scales = executor.program().find_graph("apply") == nullptr;
  for (const LogicalState& tensor : logical_states(executor.program())) {
    if (tensor.kind == StateKind::kParam) load_param(source, tensor, executor);
    if (tensor.kind == StateKind::kScale && needs_scales) load_scale(source, tensor, executor);
  }
  for (const QuantizedParam& param : quantized_params(executor.program())) load_quantized(source, param, executor);
  prepare(executor);
}

void initialize_weights(Executor& executor, uint64_t seed) {
  struct Parameter {
    LogicalState tensor;
    const Node* node;
    uint64_t stream;
    std::vector<float> values = {};
  };
  constexpr int64_t kTogether = int64_t{1} << 28;  // elements in host memory at once
  std::vector<Parameter> group;
  int64_t elements = 0;
  auto write_group = [&] {  // each parameter has a random stream of its own: made in parallel, the same values
    parallel_for(static_cast<int64_t>(group.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Parameter& p = group[static_cast<size_t>(i)];
        p.values = initial_values(*p.node, p.tensor.type.shape.elements(), seed, p.stream);
      }
    });
    for (const Parameter& p : group) write_param(executor, p.tensor, p.values);
    group.clear();
    elements = 0;
  };
  uint64_t stream = 0;
  for (LogicalState& tensor : logical_states(executor.program())) {
    if (tensor.kind != StateKind::kParam) continue;
    const Node* node = find_param_node(executor.program(), tensor.state);
    check(node != nullptr, ErrorCode::kInternal, "state {} has no param leaf to take its initial values from",
          tensor.state);
    elements += tensor.type.shape.elements();
    group.push_back({std::move(tensor), node, ++stream});
    if (elements >= kTogether) write_group();
  }
  write_group();
  for (const QuantizedParam& param : quantized_params(executor.program()))
    write_quantized(executor, param, initial_values(*param.leaf, param.codes.type.shape.elements(), seed, ++stream));
  prepare(executor);
}

}  // namespace octet
