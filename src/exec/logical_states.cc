#include "exec/logical_states.h"

#include <map>

#include "base/error.h"

namespace octet {
namespace {

// fn(offset in the state, bytes) for the runs of this part of a tensor, one after the other.
template <typename Fn>
void for_each_part(const LogicalState& tensor, int64_t offset, int64_t bytes, const Fn& fn) {
  check(offset >= 0 && offset + bytes <= tensor.type.bytes(), ErrorCode::kInvalidArgument,
        "{} is {} = {} bytes: it has no {} bytes at {}", tensor.name, to_string(tensor.type), tensor.type.bytes(),
        bytes, offset);
  for_each_run(tensor.at, dtype_bytes(tensor.type.dtype), offset, offset + bytes,
               [&](int64_t, int64_t state_offset, int64_t count) { fn(state_offset, static_cast<size_t>(count)); });
}

}  // namespace

void read_logical(Executor& executor, const LogicalState& tensor, std::span<std::byte> bytes, int64_t offset) {
  for_each_part(tensor, offset, std::ssize(bytes), [&](int64_t at, size_t count) {
    executor.read_state_part(tensor.state, at, bytes.first(count));
    bytes = bytes.subspan(count);
  });
}

void write_logical(Executor& executor, const LogicalState& tensor, std::span<const std::byte> bytes, int64_t offset) {
  for_each_part(tensor, offset, std::ssize(bytes), [&](int64_t at, size_t count) {
    executor.write_state_part(tensor.state, at, bytes.first(count));
    bytes = bytes.subspan(count);
  });
}

void fill_logical(Executor& executor, const LogicalState& tensor, int64_t grain, Executor::MakeBytes make) {
  const PlacementRuns runs(tensor.at, dtype_bytes(tensor.type.dtype));
  const int64_t bytes = tensor.type.bytes();
  if (runs.count() == 1) return executor.fill_state_part(tensor.state, runs.at(0).state, bytes, grain, make);
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(bytes, std::max(kPieceBytes / grain, int64_t{1}) * grain)));
  for (int64_t at = 0; at < bytes; at += std::ssize(piece)) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(std::ssize(piece), bytes - at)));
    make(at, part);
    write_logical(executor, tensor, part, at);
  }
}

std::vector<QuantizedParam> quantized_params(const Program& program) {
  std::vector<QuantizedParam> params;
  std::map<std::string, LogicalState> scales;  // by param
  for (LogicalState& state : logical_states(program)) {
    if (state.role == StateRole::kScaleInv) {
      scales[state.param] = std::move(state);
      continue;
    }
    if (state.role != StateRole::kCodes) continue;
    const Node* leaf = find_leaf(program, state.state);
    check(leaf != nullptr, ErrorCode::kInternal, "no graph of program '{}' reads {}", program.name, state.state);
    const Attrs& attrs = leaf->attrs;
    QuantizedParam& param = params.emplace_back();
    param.param = state.param;
    param.rule = {.layout = parse_scale_layout(attrs.get<std::string>("scaling")),
                  .format = state.type.dtype,
                  .margin = attrs.get<int64_t>("margin"),
                  .power_of_two = attrs.get<bool>("pow2")};
    param.leaf = leaf;
    param.codes = std::move(state);
  }
  for (QuantizedParam& param : params) {
    const auto found = scales.find(param.param);
    check(found != scales.end(), ErrorCode::kInternal, "{} has no scales", param.codes.name);
    param.scale_inv = found->second;
  }
  return params;
}

void write_scales(Executor& executor, const QuantizedParam& param, std::vector<float> scale_inv) {
  if (scale_inv.size() == 1) scale_inv.resize(static_cast<size_t>(param.scale_inv.type.shape.elements()), scale_inv[0]);
  write_logical(executor, param.scale_inv, std::as_bytes(std::span(scale_inv)));
}

void write_quantized(Executor& executor, const QuantizedParam& param, std::span<const float> values) {
  QuantizedMatrix matrix = quantize_matrix(values, param.rows(), param.cols(), param.rule);
  write_logical(executor, param.codes, matrix.codes);
  write_scales(executor, param, std::move(matrix.scale_inv));
}

}  // namespace octet
