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
