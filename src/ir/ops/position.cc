// Rotary positions: pairs of the first rotary_dim elements of every head are turned by position times frequency.
#include "ir/builder.h"
#include "ir/ops/layouts.h"

namespace octet::facts {
namespace {

using namespace ops;

Types rope_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_rank(graph, node, 0, 2);
  const Shape& x = input_shape(graph, node, 0);
  require_type(graph, node, 1, {DType::kI32, {x[0]}});
  int64_t heads = node.attr<int64_t>("heads"), head_dim = node.attr<int64_t>("head_dim");
  require(x[1] % heads == 0 && x[1] / heads == head_dim, node, "x has {} channels, heads x head_dim is {} x {}", x[1],
          heads, head_dim);
  int64_t rotary = node.attrs.get_or("rotary_dim", head_dim);
  require(rotary % 2 == 0 && rotary <= head_dim, node, "rotary_dim is {} (want an even number up to head_dim {})",
          rotary, head_dim);
  return {input_type(graph, node, 0)};
}

// Rows and heads lie on any axes.
Layouts place_rope(const Graph& graph, const Node& node) {
  const Layout& x = input_layout(graph, node, 0);
  require_settled(graph, node, 0);
  require_is(graph, node, 1, x.moved({0, -1}), "as the rows of x");
  return {x};
}

void rope_gradient(GradientContext& context) {
  Attrs attrs = context.node().attrs;
  attrs.set("inverse", !context.node().attr<bool>("inverse"));
  context.add_gradient(0, emit_gradient(context, Op::kRope, {context.gradient(0), context.input(1)}, std::move(attrs)));
}

}  // namespace

const OpFacts rope = {
    .infer = rope_type,
    .place = place_rope,
    .gradient = rope_gradient,
    .cost = per_result_element<6>,
    .in_place = {0},
    .cheap_to_recompute = true,
    .meaning =
        "rotates pairs of each head's first rotary_dim elements by position x theta^(-2i/rotary_dim); "
        "interleaved: pairs (2i, 2i+1), else (i, i + rotary_dim/2); inverse rotates back; rotary_dim absent: head_dim"};

}  // namespace octet::facts
