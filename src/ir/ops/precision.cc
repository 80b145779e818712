// Scales and quantization. Scales are float32 arithmetic by one written formula (docs/ir.md), so that codes and scales
// are equal bit for bit on every device.
#include <bit>

#include "ir/nf4.h"
#include "ir/ops/layouts.h"
#include "ir/tensor_stats.h"

namespace octet::facts {
namespace {

using namespace ops;

Types compute_scale_type(const Graph& graph, const Node& node) {
  require_type(graph, node, 0, f32({1}));
  return {f32({1}), f32({1})};
}

Types quantize_type(const Graph& graph, const Node& node) {
  require_matrix(graph, node, 0);
  ScaleLayout layout = layout_attr(node, "scaling");
  bool per_tensor = layout == ScaleLayout::kTensor;
  require(node.operand("scale").exists() == per_tensor, node,
          "scaling per tensor takes a scale input, the others none");
  require(!node.attr<bool>("own_scales") || layout == ScaleLayout::kRow, node, "own_scales are of scaling row");
  if (per_tensor) require_type(graph, node, 1, f32({1}));
  DType format = dtype_attr(node, "format");
  const Shape& x = input_shape(graph, node, 0);
  require(format != DType::kI4 || (x[0] % 2 == 0 && x[1] % 2 == 0), node, "i4 codes of {}: both dims must be even", x);
  Shape transposed{x[1], x[0]};
  TensorType scales = scale_type(x, layout), scales_t = scale_type(transposed, layout);
  return {{format, x}, std::move(scales), {format, std::move(transposed)}, std::move(scales_t), f32({1})};
}

// Codes lie as x, and each part gives the amax of its own. What one scale is for lies on one rank; where that holds of
// x alone, the transposed results are of no use.
Layouts place_quantize(const Graph& graph, const Node& node) {
  const Layout& x = input_layout(graph, node, 0);
  const ScaleLayout scaling = layout_attr(node, "scaling");
  require_settled(graph, node, 0);
  require_copies(graph, node, 1);
  const bool own_scales = node.attr<bool>("own_scales");
  if (!own_scales) require_whole_groups(graph, node, 0, scaling);
  Layout scales = scales_layout(x, scaling);
  if (own_scales) scales = scales.with_pending(Pending::kNever, x.cut_axes(1));
  const Layout transposed = x.moved({1, 0});
  Layout codes_t = transposed, scales_t = scales_layout(transposed, scaling);
  const Shape& shape = input_shape(graph, node, 0);
  if (!has_whole_groups(transposed, {shape[1], shape[0]}, scaling)) {
    codes_t = Layout().with_pending(Pending::kNever, x.cut_axes());
    scales_t = codes_t;
  }
  return {x, scales, codes_t, scales_t, Layout().with_pending(Pending::kMax, x.cut_axes())};
}

// A part of a row has a scale of its own, unless the columns that readers take lie on several ranks.
void arrange_quantize(LayoutRequest& request) {
  Node& node = request.node();
  request.reduce(0);
  if (node.attr<std::string>("scaling") == "row" && !request.layout(0).cut_axes(1).empty()) {
    if (request.is_read_by(Op::kTakeColumns))
      request.redistribute(0, request.layout(0).whole(1));
    else
      node.attrs.set("own_scales", true);
  }
  if (given(node, 1)) request.redistribute(1, {});
}

void arrange_dequantize(LayoutRequest& request) { request.reduce(0); }

void arrange_take_columns(LayoutRequest& request) {
  request.reduce(0);
  request.redistribute(0, request.layout(0).whole(1));
}

Layouts place_dequantize(const Graph& graph, const Node& node) {
  const Layout& codes = input_layout(graph, node, 0);
  require_whole_groups(graph, node, 0, layout_attr(node, "scaling"));
  for (size_t i : {size_t{1}, size_t{2}})
    require_is(graph, node, i, scales_layout(codes, layout_attr(node, "scaling")), "as the codes");
  return {codes};
}

Types dequantize_type(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  const TensorType& codes = input_type(graph, node, 0);
  require(is_code(codes.dtype), node, "codes are {} (want e4m3, e5m2, i8 or i4)", codes.dtype);
  require_type(graph, node, 1, scale_type(codes.shape, layout_attr(node, "scaling")));
  require_zero_points(graph, node, "zero", codes, layout_attr(node, "scaling"));
  DType to = dtype_attr(node, "to");
  require(is_arithmetic(to), node, "to is {} (want f32, bf16, f16 or f64)", to);
  return {{to, codes.shape}};
}

Types dequantize_nf4_type(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  const TensorType& codes = input_type(graph, node, 0);
  require(codes.dtype == DType::kI4 && codes.shape.elements() % 8 == 0, node,
          "codes are {} (want i4, a multiple of 8 of them)", codes);
  const int64_t group = node.attr<int64_t>("group");
  require(std::has_single_bit(static_cast<uint64_t>(group)), node, "group is {} (want a power of two)", group);
  const Nf4Shapes shapes = nf4_shapes(codes.shape, group);
  require_type(graph, node, 1, {DType::kI8, shapes.magnitudes});
  require_type(graph, node, 2, f32(shapes.scales));
  require_type(graph, node, 3, f32(shapes.offsets));
  const int64_t blocks = shapes.magnitudes[1];
  require(!has_whole_nf4_blocks(codes.shape) || blocks % group == 0, node,
          "a scale is of {} magnitudes, and a row has {} of them", group, blocks);
  const DType to = dtype_attr(node, "to");
  require(is_arithmetic(to), node, "to is {} (want f32, bf16, f16 or f64)", to);
  return {{to, codes.shape}};
}

Layouts place_dequantize_nf4(const Graph& graph, const Node& node) {
  const Layout& codes = input_layout(graph, node, 0);
  require_settled(graph, node, 0);
  if (!has_whole_nf4_blocks(input_shape(graph, node, 0))) require_copies(graph, node, 0);
  for (size_t i : {size_t{1}, size_t{2}}) require_is(graph, node, i, codes, "as the codes");
  require_is(graph, node, 3, codes.whole(1), "as the rows of the codes");
  return {codes};
}

Types take_columns_type(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  const TensorType& x = input_type(graph, node, 0);
  require(x.dtype != DType::kI4, node, "columns of i4 fill no whole bytes");
  require_type(graph, node, 1, {DType::kI32, {x.shape[1]}});
  return {x};
}

Layouts place_take_columns(const Graph& graph, const Node& node) {
  require_settled(graph, node, 0);
  require_whole(graph, node, 0, 1);
  require_copies(graph, node, 1);
  return {input_layout(graph, node, 0)};
}

Types update_scales_type(const Graph& graph, const Node& node) {
  const TensorType& history = input_type(graph, node, 0);
  require(history.dtype == DType::kF32 && history.shape.rank() == 1, node, "history is {} (want f32[L])", history);
  require_type(graph, node, 1, f32({1}));
  require_optional(graph, node, "finite", f32({1}));
  return {history, f32({1}), f32({1})};
}

Types tensor_stats_type(const Graph& graph, const Node& node) {
  require_matrix(graph, node, 0);
  return {f32({kTensorStatCount})};
}

}  // namespace

const OpFacts compute_scale = {.infer = compute_scale_type,
                               .layouts = kWhole,
                               .no_gradient = "made after autodiff",
                               .cost = per_result_element<4>,
                               .precision = {ResultPrecision::kFloat32},
                               .meaning =
                                   "scale = max(format) / amax / 2^margin (1 where amax is 0 or not finite), pow2: "
                                   "rounded down to a power of two; scale_inv = 1 / scale"};
const OpFacts quantize = {
    .infer = quantize_type,
    .layouts = {place_quantize, arrange_quantize, rows_of<1, 1>},
    .no_gradient = "made after autodiff",
    .cost = per_input_element<3>,
    .precision = {ResultPrecision::kUnchanged},
    .cheap_to_recompute = true,
    .meaning =
        "codes = round(x scale) saturating; scaling tensor with a scale operand, the others from each group's amax; "
        "codes_t, scale_inv_t: the same of the transposed matrix; amax of x; own_scales: a rank's part of a row has a "
        "scale of its own"};
const OpFacts dequantize = {.infer = dequantize_type,
                            .layouts = {place_dequantize, arrange_dequantize, rows_of<1>},
                            .no_gradient = "made after autodiff",
                            .cost = per_input_element<1>,
                            .cheap_to_recompute = true,
                            .meaning = "codes, less their zero points, times scale_inv"};
const OpFacts dequantize_nf4 = {
    .infer = dequantize_nf4_type,
    .layouts = {place_dequantize_nf4, arrange_dequantize, rows_of<1>},
    .no_gradient = "made after autodiff",
    .cost = per_result_element<2>,
    .cheap_to_recompute = true,
    .meaning =
        "value(code) (magnitude(code) scale + offset): a magnitude for each 64 values, a scale for each `group` "
        "magnitudes, in row-major order; rows that are not whole blocks are one sequence, and have magnitudes "
        "[1, blocks], scales [1, groups], offsets [1]"};
const OpFacts take_columns = {.infer = take_columns_type,
                              .layouts = {place_take_columns, arrange_take_columns, rows_of<1>},
                              .no_gradient = "made after autodiff",
                              .cost = per_input_element<0>,
                              .cheap_to_recompute = true,
                              .meaning = "column columns[c] of x; columns outside it are the caller's error"};
const OpFacts update_scales = {
    .infer = update_scales_type,
    .layouts = kWhole,
    .no_gradient = "made after autodiff",
    .cost = per_input_element<1>,
    .precision = {ResultPrecision::kFloat32},
    .in_place = {0},
    .members_independent = true,
    .meaning =
        "history' = [amax, history[0..L-2]], or history where amax is 0 or not finite or finite is 0; scale "
        "by the formula of compute_scale from the maximum of history' (algo max) or its "
        "first entry (most_recent)"};
const OpFacts tensor_stats = {.infer = tensor_stats_type,
                              .layouts = kWhole,
                              .no_gradient = "made after autodiff",
                              .cost = per_input_element<40>,
                              .precision = {ResultPrecision::kFloat32},
                              .meaning =
                                  "amax, share of non-finite values, binades of the tensor and of its 128-blocks; then "
                                  "underflow, saturation and noise / signal under one scale (format), in blocks, "
                                  "and in blocks of the transpose (both e4m3, powers of two)"};

}  // namespace octet::facts
