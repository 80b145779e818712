#include "exec/quantized_states.h"

#include <map>

#include "base/error.h"

namespace octet {
std::vector<QuantizedParam> quantized_params(const Program& program) {
  std::vector<QuantizedParam> params;
  std::map<std::string, LogicalState> scales;  // by param
  for (LogicalState& state : logical_states(program)) {
    if (state.role == StateRole::kScaleInv) scales[state.param] = std::move(state);
    if (state.role != StateRole::kCodes) continue;
    const Node* leaf = find_leaf(program, state.state);
    check(leaf != nullptr, ErrorCode::kInternal, "no graph of program '{}' reads {}", program.name, state.state);
    const Attrs& attrs = leaf->attrs;
    params.push_back({.param = state.param,
                      .rule = {.layout = parse_scale_layout(attrs.get<std::string>("scaling")),
                               .format = state.type.dtype,
                               .margin = attrs.get<int64_t>("margin"),
                               .power_of_two = attrs.get<bool>("pow2")},
                      .leaf = leaf,
                      .codes = std::move(state),
                      .scale_inv = {}});
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
