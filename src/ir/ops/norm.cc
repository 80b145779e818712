// Norms over the last dim, and their gradients from the saved statistics. Statistics and weight gradients are float32.
#include "ir/builder.h"
#include "ir/ops/layouts.h"

namespace octet::facts {
namespace {

using namespace ops;

Shape statistics(const Graph& graph, const Node& node) { return {input_shape(graph, node, 0).rows()}; }
Shape channels(const Graph& graph, const Node& node) { return {input_shape(graph, node, 0).cols()}; }

void require_channels(const Graph& graph, const Node& node, size_t i, const char* what) {
  require_arithmetic(graph, node, i);
  const Shape& shape = input_shape(graph, node, i);
  int64_t width = input_shape(graph, node, 0).cols();
  require(shape.rank() == 1 && shape[0] == width, node, "{} is {}, x has {} channels", what, shape, width);
}

void require_like_x(const Graph& graph, const Node& node, size_t i) {
  const TensorType &x = input_type(graph, node, 0), &dy = input_type(graph, node, i);
  require(x == dy, node, "x and dy differ: {} vs {}", x, dy);
}

Types layer_norm_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_channels(graph, node, 1, "weight");
  require_channels(graph, node, 2, "bias");
  return {input_type(graph, node, 0), f32(statistics(graph, node)), f32(statistics(graph, node))};
}

Types rms_norm_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_channels(graph, node, 1, "weight");
  return {input_type(graph, node, 0), f32(statistics(graph, node))};
}

Types layer_norm_grad_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_channels(graph, node, 1, "weight");
  require_type(graph, node, 2, f32(statistics(graph, node)));
  require_type(graph, node, 3, f32(statistics(graph, node)));
  require_like_x(graph, node, 4);
  return {input_type(graph, node, 0), f32(channels(graph, node)), f32(channels(graph, node))};
}

Types rms_norm_grad_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_channels(graph, node, 1, "weight");
  require_type(graph, node, 2, f32(statistics(graph, node)));
  require_like_x(graph, node, 3);
  return {input_type(graph, node, 0), f32(channels(graph, node))};
}

// Rows lie on any axes; a row's statistics with them.
Layout rows_layout(const Graph& graph, const Node& node) {
  const Layout& x = input_layout(graph, node, 0);
  require_layout(x == x.only(0) && (x.cuts.empty() || input_rank(graph, node, 0) > 1), graph, node, 0,
                 "cut along dim 0 alone, nothing pending");
  const auto& operands = op_info(node.op).operands;
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    if (operands[i] == "weight" || operands[i] == "bias")
      require_copies(graph, node, i);
    else
      require_is(graph, node, i, x, "rows as those of x");
  }
  return x;
}

void arrange_norm(LayoutRequest& request) {
  const auto& operands = op_info(request.node().op).operands;
  request.reduce(0);
  request.redistribute(0, request.layout(0).only(0));
  for (size_t i = 1; i < request.node().inputs.size(); ++i) {
    const bool copies = operands[i] == "weight" || operands[i] == "bias";
    request.redistribute(i, copies ? Layout() : request.layout(0));
  }
}

Layouts place_norm(const Graph& graph, const Node& node) {
  return Layouts(node.results.size(), rows_layout(graph, node));
}

// Gradients of weights are sums over the rows of all parts.
Layouts place_norm_grad(const Graph& graph, const Node& node) {
  const Layout x = rows_layout(graph, node);
  Layouts results(node.results.size(), Layout().with_pending(Pending::kSum, x.cut_axes()));
  results[0] = x;
  return results;
}

void layer_norm_gradient(GradientContext& context) {
  require_no_gradient(context, 1, "the mean of a norm");
  require_no_gradient(context, 2, "the rstd of a norm");
  Value dx =
      emit_gradient(context, Op::kLayerNormGrad,
                    {context.input(0), context.input(1), context.result(1), context.result(2), context.gradient(0)});
  context.add_gradient(0, dx);
  context.add_gradient(1, {dx.node, 1});
  context.add_gradient(2, {dx.node, 2});
}

void rms_norm_gradient(GradientContext& context) {
  require_no_gradient(context, 1, "the rstd of a norm");
  Value dx = emit_gradient(context, Op::kRmsNormGrad,
                           {context.input(0), context.input(1), context.result(1), context.gradient(0)});
  context.add_gradient(0, dx);
  context.add_gradient(1, {dx.node, 1});
}

}  // namespace

const OpFacts layer_norm = {.infer = layer_norm_type,
                            .layouts = {place_norm, arrange_norm, rows_of<1>},
                            .gradient = layer_norm_gradient,
                            .cost = per_input_element<8>,
                            .precision = {ResultPrecision::kComputeType, ResultPrecision::kFloat32},
                            .in_place = {0},
                            .row_wise = true,
                            .cheap_to_recompute = true,
                            .meaning = "(x - mean) rstd weight + bias, rstd = 1/sqrt(biased variance + eps)"};
const OpFacts layer_norm_grad = {.infer = layer_norm_grad_type,
                                 .layouts = {place_norm_grad, arrange_norm, rows_of<1, 1>},
                                 .no_gradient = "is a gradient",
                                 .cost = per_input_element<14>,
                                 .precision = {ResultPrecision::kComputeType, ResultPrecision::kFloat32},
                                 .meaning =
                                     "with h = (x - mean) rstd, g = dy weight: dx = rstd (g - mean(g) - h mean(g h)), "
                                     "dweight = sum dy h, dbias = sum dy"};
const OpFacts rms_norm = {.infer = rms_norm_type,
                          .layouts = {place_norm, arrange_norm, rows_of<1>},
                          .gradient = rms_norm_gradient,
                          .cost = per_input_element<5>,
                          .precision = {ResultPrecision::kComputeType, ResultPrecision::kFloat32},
                          .in_place = {0},
                          .row_wise = true,
                          .cheap_to_recompute = true,
                          .meaning = "x rstd weight, rstd = 1/sqrt(mean(x^2) + eps)"};
const OpFacts rms_norm_grad = {
    .infer = rms_norm_grad_type,
    .layouts = {place_norm_grad, arrange_norm, rows_of<1, 1>},
    .no_gradient = "is a gradient",
    .cost = per_input_element<10>,
    .precision = {ResultPrecision::kComputeType, ResultPrecision::kFloat32},
    .meaning = "with h = x rstd, g = dy weight: dx = rstd (g - h mean(g h)), dweight = sum dy h"};

}  // namespace octet::facts
