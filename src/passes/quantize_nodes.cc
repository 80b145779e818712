#include "passes/quantize_nodes.h"

namespace octet {

Value emit_current_scale(Builder& builder, Value x, const Recipe& recipe, DType format, const std::string& name) {
  Value amax{builder.emit(Op::kReduce, {x}, {{"reduction", std::string("amax")}, {"axis", std::string("all")}},
                          name + ".amax"),
             0};
  NodeId scale = builder.emit(
      Op::kComputeScale, {amax},
      {{"format", std::string(dtype_name(format))}, {"margin", recipe.margin}, {"pow2", recipe.power_of_two}},
      name + ".scale");
  return {scale, 0};
}

NodeId emit_quantize(Builder& builder, Value x, Value scale, const Recipe& recipe, ScaleLayout layout, DType format,
                     const std::string& name) {
  Attrs attrs = {{"format", std::string(dtype_name(format))}, {"scaling", std::string(scale_layout_name(layout))}};
  if (layout == ScaleLayout::kTensor) return builder.emit(Op::kQuantize, {x, scale}, std::move(attrs), name);
  attrs.set("margin", recipe.margin);
  attrs.set("pow2", layout != ScaleLayout::kRow || recipe.power_of_two);
  return builder.emit(Op::kQuantize, {x}, std::move(attrs), name);
}

Value emit_tensor_stats(Builder& builder, Value x, const Recipe& recipe, DType format, bool tiles,
                        const std::string& name) {
  Attrs attrs = {{"format", std::string(dtype_name(format))},
                 {"blocks", std::string(tiles ? "128x128" : "1x128")},
                 {"margin", recipe.margin},
                 {"pow2", recipe.power_of_two}};
  return {builder.emit(Op::kTensorStats, {x}, std::move(attrs), name), 0};
}

}  // namespace octet
