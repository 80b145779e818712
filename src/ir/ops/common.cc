#include "ir/ops/common.h"

#include "ir/builder.h"

namespace octet::ops {

void throw_bad_node(const Node& node, const std::string& message) {
  fail(ErrorCode::kInvalidArgument, "{}: {} in node {}", op_name(node.op), message, node.name);
}

void require_arithmetic(const Graph& graph, const Node& node, size_t i) {
  DType dtype = input_type(graph, node, i).dtype;
  require(is_arithmetic(dtype), node, "input {} is {} (want f32, bf16, f16 or f64; cast or dequantize it)", i, dtype);
}

void require_rank(const Graph& graph, const Node& node, size_t i, int rank) {
  const Shape& shape = input_shape(graph, node, i);
  require(shape.rank() == rank, node, "input {} has shape {} (want rank {})", i, shape, rank);
}

void require_matrix(const Graph& graph, const Node& node, size_t i) {
  require_arithmetic(graph, node, i);
  require_rank(graph, node, i, 2);
}

void require_type(const Graph& graph, const Node& node, size_t i, const TensorType& want) {
  const TensorType& type = input_type(graph, node, i);
  require(type == want, node, "input {} is {} (want {})", i, type, want);
}

void require_optional(const Graph& graph, const Node& node, std::string_view operand, const TensorType& want) {
  if (node.operand(operand).exists())
    require_type(graph, node, static_cast<size_t>(operand_index(node.op, operand)), want);
}

void require_zero_points(const Graph& graph, const Node& node, std::string_view operand, const TensorType& codes,
                         ScaleLayout layout) {
  if (!node.operand(operand).exists()) return;
  require(is_integer_code(codes.dtype), node, "codes of {} have no zero points", codes.dtype);
  require(layout == ScaleLayout::kRow || scale_group(layout) > 0, node,
          "zero points go with scales of rows or of groups along them, not {}", scale_layout_name(layout));
  require_optional(graph, node, operand, {DType::kI8, scale_shape(layout, codes.shape[0], codes.shape[1])});
}

double moved_bytes(const Graph& graph, const Node& node) {
  double bytes = 0;
  for (Value input : node.inputs) {
    if (input.exists()) bytes += static_cast<double>(graph.type(input).bytes());
  }
  for (const TensorType& result : node.results) bytes += static_cast<double>(result.bytes());
  return bytes;
}

Value emit_gradient(GradientContext& context, Op op, std::vector<Value> inputs, Attrs attrs) {
  return {context.builder().emit(op, std::move(inputs), std::move(attrs), context.node().name), 0};
}

Value reduce_to_input(GradientContext& context, Value dy, int input) {
  const Shape want = context.graph().shape(context.input(input));
  const Shape& have = context.graph().shape(dy);
  if (want == have) return dy;
  std::string axis = want.elements() == 1 ? "all" : "rows";
  return emit_gradient(context, Op::kReduce, {dy}, {{"reduction", "sum"}, {"axis", axis}});
}

void require_no_gradient(GradientContext& context, int result, const char* what) {
  check(!context.gradient(result).exists(), ErrorCode::kUnsupported,
        "{}: the loss depends on {}, whose gradient is not defined, in node {}", op_name(context.node().op), what,
        context.node().name);
}

}  // namespace octet::ops
