#include "exec/quantized_states.h"

#include "base/error.h"

namespace octet {
namespace {

constexpr std::string_view kCodesSuffix = ".codes";

const Node& codes_leaf(const Program& program, const std::string& state) {
  for (const Graph& graph : program.graphs()) {
    const Value leaf = graph.find_leaf(Op::kState, state);
    if (leaf.exists()) return graph.node(leaf);
  }
  fail(ErrorCode::kInternal, "no graph of program '{}' reads {}", program.name, state);
}

}  // namespace

std::vector<QuantizedParam> quantized_params(const Program& program) {
  std::vector<QuantizedParam> params;
  const std::vector<LogicalState> states = logical_states(program);
  for (const LogicalState& codes : states) {
    if (codes.kind != StateKind::kQuantized || !codes.name.ends_with(kCodesSuffix)) continue;
    const Node& leaf = codes_leaf(program, codes.state);
    const Attrs& attrs = leaf.attrs;
    QuantizedParam param{.param = codes.name.substr(0, codes.name.size() - kCodesSuffix.size()),
                         .rule = {.layout = parse_scale_layout(attrs.get<std::string>("scaling")),
                                  .format = codes.type.dtype,
                                  .margin = attrs.get<int64_t>("margin"),
                                  .power_of_two = attrs.get<bool>("pow2")},
                         .leaf = &leaf,
                         .codes = codes};
    for (const LogicalState& state : states) {
      if (state.name == param.param + ".scale_inv") param.scale_inv = state;
    }
    check(!param.scale_inv.name.empty(), ErrorCode::kInternal, "{} has no scales", codes.name);
    params.push_back(std::move(param));
  }
  return params;
}

void write_quantized(Executor& executor, const QuantizedParam& param, const QuantizedMatrix& matrix) {
  write_logical(executor, param.codes, matrix.codes);
  std::vector<float> scales = matrix.scale_inv;
  if (scales.size() == 1) scales.resize(static_cast<size_t>(param.scale_inv.type.shape.elements()), scales[0]);
  write_logical(executor, param.scale_inv, std::as_bytes(std::span(scales)));
}

void write_quantized(Executor& executor, const QuantizedParam& param, std::span<const float> values) {
  write_quantized(executor, param, quantize_matrix(values, param.rows(), param.cols(), param.rule));
}

}  // namespace octet
