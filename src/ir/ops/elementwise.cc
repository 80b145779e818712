// Elementwise ops. Results follow the type of input 0. The second operand of the binary ops is as large as the first,
// or [C] against its last dim, or [1]; it may be of another float type (float32 biases and scalars).
#include "ir/builder.h"
#include "ir/dropout_bits.h"
#include "ir/ops/layouts.h"

namespace octet {

std::string dropout_bits_fault(double p, int64_t bits) {
  if (bits != 8 && bits != 32) return fmt::format("bits is {} (want 8 or 32)", bits);
  const int64_t dropped = byte_threshold(p);
  if (bits == 32 || p == 0 || (dropped > 0 && dropped < 256)) return "";
  return fmt::format(
      "dropout of {} with 8 bits is {} / 256: nothing or all would be dropped (want 1/512 <= p < 511/512, or 32 bits)",
      p, dropped);
}

namespace ops {
void require_dropout_bits(const Node& node, double p) {
  const std::string fault = dropout_bits_fault(p, node.attr<int64_t>("bits"));
  require(fault.empty(), node, "{}", fault);
}
}  // namespace ops
}  // namespace octet

namespace octet::facts {
namespace {

using namespace ops;

Types cast_type(const Graph& graph, const Node& node) {
  return {{dtype_attr(node, "to"), input_shape(graph, node, 0)}};
}

Types unary(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  return {input_type(graph, node, 0)};
}

Types slope_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_arithmetic(graph, node, 1);
  const Shape &x = input_shape(graph, node, 0), &dy = input_shape(graph, node, 1);
  require(x == dy, node, "x and dy differ: {} vs {}", x, dy);
  return {input_type(graph, node, 0)};
}

Types binary(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_arithmetic(graph, node, 1);
  const Shape &a = input_shape(graph, node, 0), &b = input_shape(graph, node, 1);
  bool fits = a == b || (b.rank() == 1 && (b[0] == a.cols() || b[0] == 1));
  require(fits, node, "shapes do not fit: {} and {} (the second may be the same, [{}] or [1])", a, b, a.cols());
  return {input_type(graph, node, 0)};
}

Types dropout_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_type(graph, node, 1, {DType::kI64, {3}});
  require_dropout_bits(node, node.attr<double>("p"));
  return {input_type(graph, node, 0)};
}

// A sum of wider parts is no less exact than one of narrow ones; to a narrower type every part would be rounded.
Layouts place_cast(const Graph& graph, const Node& node) {
  const bool widens = dtype_bytes(node.results[0].dtype) >= dtype_bytes(input_type(graph, node, 0).dtype);
  return widens ? place_linear(graph, node) : place_elementwise(graph, node);
}

// Parts that are rounded to a narrow type are settled before.
void arrange_cast(LayoutRequest& request) {
  if (dtype_bytes(request.node().results[0].dtype) < 4) request.reduce(0);
}

void arrange_maximum(LayoutRequest& request) {
  request.layout(0).pending_axes(Pending::kSum).empty() ? arrange_linear(request) : arrange_elementwise(request);
}

void arrange_dropout(LayoutRequest& request) {
  request.reduce(0);
  request.redistribute(1, {});
}

bool rows_of_shape(const Graph& graph, const Node& node, size_t, size_t operand) {
  return input_shape(graph, node, operand) == node.results[0].shape;
}

Layouts place_dropout(const Graph& graph, const Node& node) {
  require_settled(graph, node, 0);
  require_copies(graph, node, 1);
  return {input_layout(graph, node, 0)};
}

void cast_gradient(GradientContext& context) {
  DType from = context.graph().dtype(context.input(0));
  context.add_gradient(0, context.builder().cast(context.gradient(0), from));
}

void scale_gradient(GradientContext& context) {
  if (context.node().attr<bool>("detached")) return;
  context.add_gradient(0, emit_gradient(context, Op::kScale, {context.gradient(0)}, context.node().attrs));
}

// dx = dy f'(x) through the op's own _grad form.
template <Op kGrad>
void slope_gradient(GradientContext& context) {
  context.add_gradient(0, emit_gradient(context, kGrad, {context.input(0), context.gradient(0)}, context.node().attrs));
}

// dx = dy (1 - y^2)
void tanh_gradient(GradientContext& context) {
  const Value y = context.result(0), dy = context.gradient(0);
  const Value square = emit_gradient(context, Op::kMul, {y, y});
  context.add_gradient(0, emit_gradient(context, Op::kSub, {dy, emit_gradient(context, Op::kMul, {dy, square})}));
}

void add_gradient(GradientContext& context) {
  Value dy = context.gradient(0);
  context.add_gradient(0, dy);
  if (context.wants(1)) context.add_gradient(1, reduce_to_input(context, dy, 1));
}

void sub_gradient(GradientContext& context) {
  Value dy = context.gradient(0);
  context.add_gradient(0, dy);
  if (!context.wants(1)) return;
  Value sum = reduce_to_input(context, dy, 1);
  context.add_gradient(1, emit_gradient(context, Op::kScale, {sum}, {{"value", -1.0}}));
}

// da = dy b; db = the sum of dy a over what b was broadcast to.
void mul_gradient(GradientContext& context) {
  Value dy = context.gradient(0);
  if (context.wants(0)) context.add_gradient(0, emit_gradient(context, Op::kMul, {dy, context.input(1)}));
  if (!context.wants(1)) return;
  Value product = emit_gradient(context, Op::kMul, {dy, context.input(0)});
  context.add_gradient(1, reduce_to_input(context, product, 1));
}

// Dropout is linear in x: the same mask and factor on dy.
void dropout_gradient(GradientContext& context) {
  context.add_gradient(
      0, emit_gradient(context, Op::kDropout, {context.gradient(0), context.input(1)}, context.node().attrs));
}

OpFacts pointwise(OpFacts facts) {
  if (facts.layouts.place == nullptr && facts.linear != 0) facts.layouts = {place_linear, arrange_linear};
  if (facts.layouts.place == nullptr) facts.layouts = {place_elementwise, arrange_elementwise};
  facts.layouts.rows = rows_of_shape;
  facts.in_place = facts.in_place.empty() ? std::vector<int>{0} : facts.in_place;
  facts.elementwise = true;
  facts.cheap_to_recompute = true;
  return facts;
}

OpFacts slope(const char* meaning, Cost (*cost)(const Graph&, const Node&)) {
  return pointwise(
      {.infer = slope_type, .no_gradient = "is a gradient", .cost = cost, .in_place = {1, 0}, .meaning = meaning});
}

}  // namespace

const OpFacts cast = pointwise({.infer = cast_type,
                                .layouts = {place_cast, arrange_cast},
                                .gradient = cast_gradient,
                                .cost = per_result_element<1>,
                                .precision = {ResultPrecision::kUnchanged},
                                .linear = 1,
                                .meaning = "x in the type to: nearest even, FP8 saturating"});
const OpFacts scale = pointwise({.infer = unary,
                                 .gradient = scale_gradient,
                                 .cost = per_result_element<1>,
                                 .linear = 1,
                                 .meaning = "x times value; detached: a constant to autodiff"});
const OpFacts gelu = pointwise({.infer = unary,
                                .gradient = slope_gradient<Op::kGeluGrad>,
                                .cost = per_result_element<8>,
                                .meaning = "x Phi(x); approximate: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))"});
const OpFacts gelu_grad = slope("dy times the derivative of gelu at x", per_result_element<12>);
const OpFacts silu = pointwise({.infer = unary,
                                .gradient = slope_gradient<Op::kSiluGrad>,
                                .cost = per_result_element<5>,
                                .meaning = "x / (1 + exp(-x))"});
const OpFacts silu_grad = slope("dy times the derivative of silu at x", per_result_element<8>);
const OpFacts relu = pointwise({.infer = unary,
                                .gradient = slope_gradient<Op::kReluGrad>,
                                .cost = per_result_element<1>,
                                .meaning = "max(x, 0); NaN stays NaN"});
const OpFacts relu_grad = slope("dy where x > 0, else 0", per_result_element<1>);
const OpFacts tanh = pointwise(
    {.infer = unary, .gradient = tanh_gradient, .cost = per_result_element<5>, .meaning = "1 - 2 / (1 + exp(2 x))"});
const OpFacts add = pointwise({.infer = binary,
                               .gradient = add_gradient,
                               .cost = per_result_element<1>,
                               .in_place = {0, 1},
                               .addends = {0, 1},
                               .linear = 0b11,
                               .meaning = "a + b"});
const OpFacts sub = pointwise({.infer = binary,
                               .gradient = sub_gradient,
                               .cost = per_result_element<1>,
                               .in_place = {0, 1},
                               .linear = 0b11,
                               .meaning = "a - b"});
const OpFacts mul = pointwise({.infer = binary,
                               .gradient = mul_gradient,
                               .cost = per_result_element<1>,
                               .in_place = {0, 1},
                               .meaning = "a times b"});
const OpFacts maximum = pointwise({.infer = binary,
                                   .layouts = {place_maximum, arrange_maximum},
                                   .no_gradient = "used on statistics only",
                                   .cost = per_result_element<1>,
                                   .in_place = {0, 1},
                                   .members_independent = true,
                                   .meaning = "the larger of a and b; a NaN in either goes through"});
const OpFacts dropout = pointwise(
    {.infer = dropout_type,
     .layouts = {place_dropout, arrange_dropout},
     .gradient = dropout_gradient,
     .cost = per_result_element<2>,
     .meaning = "x / (1 - p) where uniform(rng, key, element) >= p, else 0; bits 8: 256 x / (256 - round(256 p)) where "
                "the element's random byte >= round(256 p)"});

}  // namespace octet::facts
