// Mixtures of experts: the choice of experts, rows sorted by expert, products of each expert with its rows.
//
// Shapes are static: T tokens with K experts each make R = T K rows whatever is chosen; which rows are whose is in
// `offsets` (those of expert e are offsets[e] .. offsets[e+1]), on the device. No row is dropped or padded.
#include "ir/builder.h"
#include "ir/ops/layouts.h"

namespace octet::facts {
namespace {

using namespace ops;

TensorType i32(Shape shape) { return {DType::kI32, std::move(shape)}; }

const Shape& require_router_logits(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  const TensorType& logits = input_type(graph, node, 0);
  require(logits.dtype == DType::kF32, node, "logits are {} (want f32)", logits);
  require(node.attr<int64_t>("k") <= logits.shape[1], node, "k is {} of {} experts", node.attr<int64_t>("k"),
          logits.shape[1]);
  return logits.shape;
}

Types top_k_type(const Graph& graph, const Node& node) {
  const Shape& logits = require_router_logits(graph, node);
  const Shape chosen{logits[0], node.attr<int64_t>("k")};
  return {f32(chosen), i32(chosen), f32(logits), f32({logits[0]})};
}

Types top_k_grad_type(const Graph& graph, const Node& node) {
  const Shape& logits = require_router_logits(graph, node);
  const Shape chosen{logits[0], node.attr<int64_t>("k")};
  require_type(graph, node, 1, i32(chosen));
  require_optional(graph, node, "dweights", f32(chosen));
  require_optional(graph, node, "dscores", f32(logits));
  require_optional(graph, node, "dlse", f32({logits[0]}));
  return {f32(logits)};
}

void top_k_gradient(GradientContext& context) {
  std::vector<Value> inputs = {context.input(0), context.result(1)};
  for (int result : {0, 2, 3}) inputs.push_back(context.gradient(result));
  context.add_gradient(0, emit_gradient(context, Op::kTopKGrad, std::move(inputs), context.node().attrs));
}

Types group_rows_type(const Graph& graph, const Node& node) {
  require_ints(graph, node, 0, 2, "experts");
  const int64_t groups = node.attr<int64_t>("groups");
  const Shape& experts = input_shape(graph, node, 0);
  require(experts.elements() <= INT32_MAX, node, "experts is {} (want at most {} rows)", experts, INT32_MAX);
  require_optional(graph, node, "part", i32({experts[0]}));
  const int64_t parts = node.attr<int64_t>("parts");
  require(groups % parts == 0 && (parts == 1 || node.operand("part").exists()), node,
          "{} groups of {} parts{} (want a multiple, and parts of tokens)", groups, parts,
          node.operand("part").exists() ? "" : ", which no operand tells");
  return {i32(experts), i32({groups + 1}), f32({groups})};
}

// [T, K] of the places, and that `rows` has T K rows.
const Shape& require_places(const Graph& graph, const Node& node, size_t i) {
  require_ints(graph, node, i, 2, "places");
  return input_shape(graph, node, i);
}

Types dispatch_rows_type(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  const Shape &places = require_places(graph, node, 1), &x = input_shape(graph, node, 0);
  require(places[0] == x[0], node, "x is {} for places {}", x, places);
  require_optional(graph, node, "scale_inv", f32({x[0]}));
  Types rows = {{input_type(graph, node, 0).dtype, {places.elements(), x[1]}}};
  if (node.operand("scale_inv").exists()) rows.push_back(f32({places.elements()}));
  return rows;
}

void dispatch_rows_gradient(GradientContext& context) {
  context.add_gradient(0, emit_gradient(context, Op::kCombineRows, {context.gradient(0), context.input(1)}));
}

Types combine_rows_type(const Graph& graph, const Node& node) {
  require_matrix(graph, node, 0);
  const Shape &places = require_places(graph, node, 1), &rows = input_shape(graph, node, 0);
  require(places.elements() == rows[0], node, "rows are {} for places {}", rows, places);
  require_optional(graph, node, "weights", f32(places));
  return {{input_type(graph, node, 0).dtype, {places[0], rows[1]}}};
}

Types combine_rows_grad_type(const Graph& graph, const Node& node) {
  Types y = combine_rows_type(graph, node);
  require_type(graph, node, 3, y[0]);
  return {input_type(graph, node, 0), f32(input_shape(graph, node, 1))};
}

void combine_rows_gradient(GradientContext& context) {
  const Value places = context.input(1), dy = context.gradient(0);
  if (!context.node().operand("weights").exists())
    return context.add_gradient(0, emit_gradient(context, Op::kDispatchRows, {dy, places}));
  const Value drows = emit_gradient(context, Op::kCombineRowsGrad, {context.input(0), places, context.input(2), dy});
  context.add_gradient(0, drows);
  context.add_gradient(2, {drows.node, 1});
}

// The number of groups: offsets has one entry more.
int64_t require_offsets(const Graph& graph, const Node& node, size_t i) {
  require_ints(graph, node, i, 1, "offsets");
  const int64_t entries = input_shape(graph, node, i)[0];
  require(entries > 1, node, "offsets has {} entries (want one more than experts)", entries);
  return entries - 1;
}

Types grouped_product_type(const Graph& graph, const Node& node, size_t w_input, DType fallback) {
  require_rank(graph, node, 0, 2);
  require_rank(graph, node, w_input, 2);
  const int64_t groups = require_offsets(graph, node, static_cast<size_t>(operand_index(node.op, "offsets")));
  const Shape &x = input_shape(graph, node, 0), &w = input_shape(graph, node, w_input);
  require(w[0] % groups == 0, node, "w is {}: its rows do not divide into {} experts", w, groups);
  const int64_t rows = w[0] / groups;
  const bool trans_b = node.attr<bool>("trans_b");
  require(x[1] == (trans_b ? w[1] : rows), node, "inner dims differ: {} vs {}, of {} and {} experts of [{},{}]{}", x[1],
          trans_b ? w[1] : rows, x, groups, rows, w[1], trans_b ? " transposed" : "");
  const DType dtype = node.attrs.has("to") ? dtype_attr(node, "to") : fallback;
  require(is_arithmetic(dtype), node, "the result cannot be {} (want f32, bf16, f16 or f64)", dtype);
  return {{dtype, {x[0], trans_b ? rows : w[1]}}};
}

Types grouped_matmul_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_arithmetic(graph, node, 1);
  return grouped_product_type(graph, node, 1, input_type(graph, node, 0).dtype);
}

Types scaled_grouped_matmul_type(const Graph& graph, const Node& node) {
  Types y = grouped_product_type(graph, node, 2, DType::kF32);
  const int64_t groups = input_shape(graph, node, 4)[0] - 1;
  for (size_t i : {size_t{0}, size_t{2}}) {
    const TensorType& codes = input_type(graph, node, i);
    const ScaleLayout layout = layout_attr(node, i == 0 ? "scaling_a" : "scaling_b");
    const bool values = i == 0 && is_arithmetic(codes.dtype);
    require(is_code(codes.dtype) || values, node, "input {} is {} (want e4m3, e5m2, i8 or i4 codes{})", i, codes.dtype,
            i == 0 ? ", or f32, bf16, f16 or f64 values" : "");
    require(!values || layout == ScaleLayout::kTensor, node, "values of {} have one scale, not those of {}",
            codes.dtype, scale_layout_name(layout));
    require_type(graph, node, i + 1, scale_type(codes.shape, layout));
    require(i == 0 || layout != ScaleLayout::kTile128 || codes.shape[0] / groups % 128 == 0, node,
            "the blocks of 128 rows of w {} would lie in two of {} experts", codes.shape, groups);
  }
  require_zero_points(graph, node, "w_zero", input_type(graph, node, 2), layout_attr(node, "scaling_b"));
  require(node.attr<bool>("trans_b"), node, "codes of w are [E B, A] only: set trans_b");
  return y;
}

Types grouped_wgrad_type(const Graph& graph, const Node& node) {
  require_matrix(graph, node, 0);
  require_matrix(graph, node, 1);
  const int64_t groups = require_offsets(graph, node, 2);
  const Shape &dy = input_shape(graph, node, 0), &x = input_shape(graph, node, 1);
  require(dy[0] == x[0], node, "dy is {} for x {}", dy, x);
  TensorType result = f32({groups * dy[1], x[1]});
  require_optional(graph, node, "c", result);
  return {std::move(result)};
}

//   y[r] = x[r] w[e]^T (trans_b): dx = dy w[e], dw[e] = dy^T x over the rows of e; without: dx = dy w[e]^T, dw[e] = x^T
//   dy.
void grouped_matmul_gradient(GradientContext& context) {
  const Node& node = context.node();
  const bool trans_b = node.attr<bool>("trans_b");
  const Value x = context.input(0), w = context.input(1), offsets = context.input(2), dy = context.gradient(0);
  Attrs attrs;
  if (const Attr* gemm = node.attrs.find("gemm")) attrs.set("gemm", *gemm);
  if (context.wants(1)) {
    const Value left = trans_b ? dy : x, right = trans_b ? x : dy;
    context.add_gradient(1, emit_gradient(context, Op::kGroupedMatmulWgrad, {left, right, offsets}, attrs));
  }
  if (!context.wants(0)) return;
  attrs.set("trans_b", !trans_b);
  attrs.set("role", "dgrad");
  if (context.graph().dtype(x) != context.graph().dtype(dy)) attrs.set("to", dtype_name(context.graph().dtype(x)));
  context.add_gradient(0, emit_gradient(context, Op::kGroupedMatmul, {dy, w, offsets}, std::move(attrs)));
}

// Two FLOPs for every element of a row and column of its expert: those of the active experts only. Of the weights,
// which are most of what is read, no more experts than there are rows.
Cost grouped_cost(const Graph& graph, const Node& node) {
  const auto offsets = static_cast<size_t>(operand_index(node.op, "offsets"));
  const bool wgrad = node.op == Op::kGroupedMatmulWgrad;
  const Shape& x = input_shape(graph, node, 0);
  const int64_t other = wgrad ? input_shape(graph, node, 1)[1] : node.results[0].shape[1];
  const double flops = 2.0 * static_cast<double>(x.elements()) * static_cast<double>(other);
  double bytes = moved_bytes(graph, node);
  const int64_t groups = input_shape(graph, node, offsets)[0] - 1;
  if (!wgrad && x[0] < groups) {
    const auto w = static_cast<double>(input_type(graph, node, node.op == Op::kGroupedMatmul ? 1 : 2).bytes());
    bytes -= w * static_cast<double>(groups - x[0]) / static_cast<double>(groups);
  }
  return {flops, bytes};
}

// Of adapters on ranks that split a linear, who cut each expert's part alike: rows of each block of w give columns of
// y; its columns, which meet those of x, a sum.
void arrange_grouped(LayoutRequest& request) {
  const Layout w = request.layout(1);
  const AxisList rows = w.cut_axes(0), columns = w.cut_axes(1);
  const int64_t experts = request.shape(2)[0] - 1;
  const bool within = !w.is_pending() && (rows.empty() ? !columns.empty() : experts > 1 && w.outer(0) == experts);
  request.redistribute(0, within && rows.empty() ? Layout().with(1, columns) : Layout());
  if (!within) request.redistribute(1, {});
  request.redistribute(2, {});
}

Layouts place_grouped(const Graph& graph, const Node& node) {
  const Layout& w = input_layout(graph, node, 1);
  require_settled(graph, node, 0), require_settled(graph, node, 1);
  require_copies(graph, node, 2);
  if (w.copies()) {
    require_copies(graph, node, 0);
    return {Layout()};
  }
  const int64_t experts = input_shape(graph, node, 2)[0] - 1;
  const AxisList rows = w.cut_axes(0), columns = w.cut_axes(1);
  require_layout(node.attr<bool>("trans_b") && (rows.empty() || (columns.empty() && w.outer(0) == experts)), graph,
                 node, 1, "[experts x out, in] cut within each expert, or along in");
  require_is(graph, node, 0, Layout().with(1, columns), "as the columns of w");
  return {rows.empty() ? Layout().with_pending(Pending::kSum, columns) : Layout().with(1, rows)};
}

}  // namespace

const OpFacts top_k = {
    .infer = top_k_type,
    .layouts = {place_whole, arrange_whole, rows_of<1>},
    .gradient = top_k_gradient,
    .cost = per_input_element<10>,
    .precision = {ResultPrecision::kFloat32, ResultPrecision::kUnchanged, ResultPrecision::kFloat32},
    .meaning =
        "scores = softmax of each row, or sigmoid; the K largest logits, largest first, of equal ones the lower index "
        "first, NaN below all; weights = scores of the chosen, renormalize: divided by their sum; lse = log-sum-exp. A "
        "row with NaN has NaN weights and experts 0 to E - 1 as any other"};
const OpFacts top_k_grad = {.infer = top_k_grad_type,
                            .layouts = {place_whole, arrange_whole, rows_of<1>},
                            .no_gradient = "is a gradient",
                            .cost = per_input_element<20>,
                            .precision = {ResultPrecision::kFloat32},
                            .meaning = "of the logits, through the weights of the chosen, all scores and lse"};
const OpFacts group_rows = {
    .infer = group_rows_type,
    .layouts = {place_whole, arrange_whole, rows_of<1, 1>},
    .gradient = [](GradientContext&) {},  // counts are constant between choices
    .cost = per_result_element<2>,
    .precision = {ResultPrecision::kUnchanged, ResultPrecision::kUnchanged, ResultPrecision::kFloat32},
    .meaning =
        "a stable counting sort of the T K choices by expert: places[t, k] is the row of choice k of token t; rows "
        "offsets[e] .. offsets[e+1] are those of expert e, in the order of tokens; counts: how many; groups = E. With "
        "part: sorted by experts[t, k] parts + part[t], groups = E parts"};
const OpFacts dispatch_rows = {
    .infer = dispatch_rows_type,
    .layouts = kWhole,
    .gradient = dispatch_rows_gradient,
    .cost = per_result_element<0>,
    .cheap_to_recompute = true,
    .meaning = "rows [R, H]: rows[places[t, k]] = x[t]; and of a scale_inv f32[R], the same"};
const OpFacts combine_rows = {.infer = combine_rows_type,
                              .layouts = {place_whole, arrange_whole, rows_of<0b10>},
                              .gradient = combine_rows_gradient,
                              .cost = per_input_element<2>,
                              .meaning =
                                  "y[t] = sum over k of weights[t, k] (absent: 1) rows[places[t, k]], in float32, in "
                                  "the order of k"};
const OpFacts combine_rows_grad = {
    .infer = combine_rows_grad_type,
    .layouts = {place_whole, arrange_whole, rows_of<0b10, 0b10>},
    .no_gradient = "is a gradient",
    .cost = per_input_element<4>,
    .precision = {ResultPrecision::kComputeType, ResultPrecision::kFloat32},
    .meaning = "drows[places[t, k]] = weights[t, k] dy[t]; dweights[t, k] = sum of rows[places[t, k]] dy[t]"};
const OpFacts grouped_matmul = {
    .infer = grouped_matmul_type,
    .layouts = {place_grouped, arrange_grouped},
    .gradient = grouped_matmul_gradient,
    .cost = grouped_cost,
    .meaning = "rows r of expert e: y[r] = x[r] w[e]^T (trans_b), or x[r] w[e]; w[e] is the e-th of E blocks of rows"};
const OpFacts grouped_matmul_wgrad = {
    .infer = grouped_wgrad_type,
    .layouts = kWhole,
    .no_gradient = "is a gradient",
    .cost = grouped_cost,
    .precision = {ResultPrecision::kFloat32},
    .in_place = {3},
    .addends = {3},
    .linear = 0b1000,
    .meaning = "dw[e] = dy^T x over the rows of expert e, 0 where it has none, plus c"};
const OpFacts scaled_grouped_matmul = {.infer = scaled_grouped_matmul_type,
                                       .layouts = kWhole,
                                       .no_gradient = "made after autodiff",
                                       .cost = grouped_cost,
                                       .meaning =
                                           "grouped_matmul of dequantized codes; those of w less their zero points; "
                                           "order: how they lie (kernels/common/code_order.h)"};

}  // namespace octet::facts
