// Matrix products. op(a) is [M, K], op(b) [K, N]; c is [M, N] in the result's type (a residual, or what a gradient
// accumulates onto) or a bias [N]. The result's type is attr to, else the type of a c of the result's shape, else a's.
#include "ir/builder.h"
#include "ir/ops/layouts.h"

namespace octet::facts {
namespace {

using namespace ops;

struct Dims {
  int64_t m, n, k;
  bool trans_a, trans_b;
};

Dims product_dims(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  const auto b_input = static_cast<size_t>(operand_index(node.op, "b"));
  require_rank(graph, node, b_input, 2);
  const Shape &a = input_shape(graph, node, 0), &b = input_shape(graph, node, b_input);
  bool trans_a = node.attr<bool>("trans_a"), trans_b = node.attr<bool>("trans_b");
  int64_t k = trans_a ? a[0] : a[1], b_k = trans_b ? b[1] : b[0];
  require(k == b_k, node, "inner dims differ: {} vs {}, of {}{} and {}{}", k, b_k, a, trans_a ? " transposed" : "", b,
          trans_b ? " transposed" : "");
  return {trans_a ? a[1] : a[0], trans_b ? b[0] : b[1], k, trans_a, trans_b};
}

TensorType product_type(const Graph& graph, const Node& node, const Dims& dims, DType fallback) {
  Shape shape{dims.m, dims.n};
  DType dtype = fallback;
  Value addend = node.operand("c");
  bool full = addend.exists() && graph.shape(addend) == shape;
  if (full) dtype = graph.dtype(addend);
  if (node.attrs.has("to")) dtype = dtype_attr(node, "to");
  require(is_arithmetic(dtype), node, "the result cannot be {} (want f32, bf16, f16 or f64)", dtype);
  if (!addend.exists()) return {dtype, std::move(shape)};
  const TensorType& c = graph.type(addend);
  if (full) {
    require(c.dtype == dtype, node, "c is {}, the result {}: they must be of one type", c, dtype);
  } else {
    require(c.shape.rank() == 1 && c.shape[0] == dims.n && is_arithmetic(c.dtype), node,
            "c is {} (want [{},{}] or a bias [{}])", c, dims.m, dims.n, dims.n);
  }
  return {dtype, std::move(shape)};
}

Types matmul_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_arithmetic(graph, node, 1);
  require(!node.attr<bool>("tf32") ||
              (input_type(graph, node, 0).dtype == DType::kF32 && input_type(graph, node, 1).dtype == DType::kF32),
          node, "tf32 is for float32 operands");
  return {product_type(graph, node, product_dims(graph, node), input_type(graph, node, 0).dtype)};
}

Types scaled_matmul_type(const Graph& graph, const Node& node) {
  Dims dims = product_dims(graph, node);
  auto operand = [&](size_t i, const char* key, bool contraction_last) {
    DType dtype = input_type(graph, node, i).dtype;
    const bool values = i == 0 && is_arithmetic(dtype);
    require(is_code(dtype) || values, node, "input {} is {} (want e4m3, e5m2, i8 or i4 codes{})", i, dtype,
            i == 0 ? ", or f32, bf16, f16 or f64 values" : "");
    ScaleLayout layout = layout_attr(node, key);
    require(!values || layout == ScaleLayout::kTensor, node, "values of {} have one scale, not those of {}", dtype,
            scale_layout_name(layout));
    require_type(graph, node, i + 1, scale_type(input_shape(graph, node, i), layout));
    bool along_contraction = scale_group(layout) > 0 || layout == ScaleLayout::kRow;
    require(!along_contraction || contraction_last, node,
            "{} is {}: the groups of input {} do not run along the contraction; use its transposed codes", key,
            scale_layout_name(layout), i);
  };
  operand(0, "scaling_a", !dims.trans_a);
  operand(2, "scaling_b", dims.trans_b);
  require_zero_points(graph, node, "b_zero", input_type(graph, node, 2), layout_attr(node, "scaling_b"));
  return {product_type(graph, node, dims, DType::kF32)};
}

// The contraction is cut alike on both sides, and the result then is a sum of parts; rows of a and columns of b cut the
// result. A sum takes a c that is a part of the same sum, and no bias: every part would add it.
Layouts place_product(const Graph& graph, const Node& node) {
  const auto b_input = static_cast<size_t>(operand_index(node.op, "b")),
             c_input = static_cast<size_t>(operand_index(node.op, "c"));
  require_settled(graph, node, 0);
  require_settled(graph, node, b_input);
  const Layout &a = input_layout(graph, node, 0), &b = input_layout(graph, node, b_input);
  const bool trans_a = node.attr<bool>("trans_a"), trans_b = node.attr<bool>("trans_b");
  const Layout rows = Layout().with_cuts_of(a, trans_a ? 1 : 0, 0), k = Layout().with_cuts_of(a, trans_a ? 0 : 1, 0);
  const Layout columns = Layout().with_cuts_of(b, trans_b ? 0 : 1, 1);
  require_layout(k == Layout().with_cuts_of(b, trans_b ? 1 : 0, 0), graph, node, b_input,
                 "the contraction cut as that of a: {}", k.cuts.empty() ? "whole" : print(k.cut_axes(0)));
  require_layout((rows.cut_axes() & columns.cut_axes()).empty(), graph, node, b_input,
                 "columns cut by no axis that cuts rows of a");
  const Layout y = rows.with_cuts_of(columns, 1, 1).with_pending(Pending::kSum, k.cut_axes());
  if (!given(node, c_input)) return {y};
  if (input_shape(graph, node, c_input) == node.results[0].shape) {
    require_is(graph, node, c_input, y, "as the result");
  } else {
    require_layout(k.cuts.empty(), graph, node, c_input, "absent: each of the {} parts of the sum would add it",
                   print(k.cut_axes(0)));
    require_is(graph, node, c_input, columns.moved({-1, 0}), "as the columns of the result");
  }
  return {y};
}

struct Side {
  size_t input;
  int outer, inner;  // the dim that the result has, and the contraction
};

// One axis may cut rows of a, columns of b, or the contraction of both. Weights stay where they are: what gives way has
// tokens along the dim that the axis cuts; what is there whole takes its part.
void agree(LayoutRequest& request, const Side& a, const Side& b, Axis axis, bool wgrad) {
  const auto cuts = [&](const Side& side, int dim) {
    return AxisSet(request.layout(side.input).cut_axes(dim)).has(axis);
  };
  const auto gather = [&](const Side& side, int dim) {
    AxisList axes = request.layout(side.input).cut_axes(dim);
    std::erase(axes, axis);
    request.redistribute(side.input, request.layout(side.input).with(dim, axes));
  };
  const auto take = [&](const Side& side, int dim) {
    request.redistribute(side.input, request.layout(side.input).cut(dim, {axis}));
  };
  for (int round = 0; round < 3; ++round) {
    const bool m = cuts(a, a.outer), ak = cuts(a, a.inner), n = cuts(b, b.outer), bk = cuts(b, b.inner);
    if (ak && bk) return;
    if (ak && n) {
      gather(a, a.inner);
    } else if (ak) {
      take(b, b.inner);
    } else if (bk && m) {
      wgrad ? gather(b, b.inner) : gather(a, a.outer);
    } else if (bk) {
      take(a, a.inner);
    } else if (m && n) {
      gather(a, a.outer);
    } else {
      return;
    }
  }
}

void arrange_product(LayoutRequest& request) {
  const Node& node = request.node();
  const auto b_input = static_cast<size_t>(operand_index(node.op, "b"));
  const bool trans_a = node.attr<bool>("trans_a"), trans_b = node.attr<bool>("trans_b");
  const Side a{0, trans_a ? 1 : 0, trans_a ? 0 : 1}, b{b_input, trans_b ? 0 : 1, trans_b ? 1 : 0};
  for (size_t i : {a.input, b.input})
    if (request.layout(i).is_pending() || request.is_rows(i)) request.reduce(i);
  const bool wgrad =
      (node.attrs.has("role") && node.attr<std::string>("role") == "wgrad") || !request.parameter_layout().cuts.empty();
  for (Axis axis : kAllAxes) agree(request, a, b, axis, wgrad);
}

void arrange_scaled_product(LayoutRequest& request) {
  arrange_product(request);
  const Node& node = request.node();
  for (size_t i : {size_t{0}, size_t{2}})
    if (request.layout(i + 1).pending_axes(Pending::kNever).empty())  // else each part's own
      request.redistribute(i + 1,
                           scales_layout(request.layout(i), layout_attr(node, i == 0 ? "scaling_a" : "scaling_b")));
  if (node.operand("b_zero").exists())
    request.redistribute(static_cast<size_t>(operand_index(node.op, "b_zero")), request.layout(3));
}

bool rows_of_a(const Graph&, const Node& node, size_t, size_t operand) {
  return operand == 0 && !node.attr<bool>("trans_a");
}

// Scales lie as their codes; a group of 128 lies on one rank. Parts of a row have the row's scale, or each its own.
Layouts place_scaled_product(const Graph& graph, const Node& node) {
  Layouts results = place_product(graph, node);
  for (size_t i : {size_t{0}, size_t{2}}) {
    const ScaleLayout scaling = layout_attr(node, i == 0 ? "scaling_a" : "scaling_b");
    const Layout& codes = input_layout(graph, node, i);
    const Layout scales = scales_layout(codes, scaling);
    const Layout own = scales.with_pending(Pending::kNever, codes.cut_axes(1));
    if (scaling != ScaleLayout::kRow || input_layout(graph, node, i + 1) != own)
      require_is(graph, node, i + 1, scales, "as the codes");
    if (i == 2) require_is(graph, node, 5, scales, "as the codes");
    if (scaling != ScaleLayout::kRow) require_whole_groups(graph, node, i, scaling);
  }
  return results;
}

Cost product_cost(const Graph& graph, const Node& node) {
  const Shape &a = input_shape(graph, node, 0), &y = node.results[0].shape;
  double k = static_cast<double>(a.elements()) / static_cast<double>(y[0]);
  double elements = static_cast<double>(y.elements());
  double sums = node.operand("c").exists() ? elements : 0.0;
  return {2 * elements * k + sums, moved_bytes(graph, node)};
}

// The gradient GEMMs of y = op(a) op(b): each is written so that it needs no transposed copy.
//   a [M,K], b [K,N]: da = dy b^T      db = a^T dy          a^T [K,M], b [K,N]: da = b dy^T      db = a dy
//   a [M,K], b [N,K]: da = dy b        db = dy^T a          a^T [K,M], b [N,K]: da = b^T dy^T    db = dy^T a^T
void matmul_gradient(GradientContext& context) {
  const Node& node = context.node();
  bool trans_a = node.attr<bool>("trans_a"), trans_b = node.attr<bool>("trans_b");
  Value a = context.input(0), b = context.input(1), dy = context.gradient(0);
  auto emit = [&](int side, Value left, Value right, bool trans_left, bool trans_right) {
    Attrs attrs = {{"trans_a", trans_left}, {"trans_b", trans_right}};
    for (const char* key : {"gemm", "head", "float32"}) {
      if (const Attr* found = node.attrs.find(key)) attrs.set(key, *found);
    }
    bool is_linear = node.attrs.has("gemm");
    if (is_linear) attrs.set("role", side == 0 ? "dgrad" : "wgrad");
    // Weight gradients are sums over many tokens: float32, whatever the operands.
    bool weight = (is_linear && side == 1) || context.graph().node(context.input(side)).op == Op::kParam;
    DType dtype = context.graph().dtype(context.input(side));
    if (weight) attrs.set("to", "f32");
    if (!weight && context.graph().dtype(left) != dtype) attrs.set("to", dtype_name(dtype));
    context.add_gradient(side, emit_gradient(context, Op::kMatmul, {left, right}, std::move(attrs)));
  };
  if (context.wants(0)) trans_a ? emit(0, b, dy, trans_b, true) : emit(0, dy, b, false, !trans_b);
  if (context.wants(1)) trans_b ? emit(1, dy, a, true, trans_a) : emit(1, a, dy, !trans_a, false);
  if (context.wants(2)) {
    DType dtype = context.graph().dtype(context.input(2));
    context.add_gradient(2, context.builder().cast(reduce_to_input(context, dy, 2), dtype));
  }
}

}  // namespace

const OpFacts matmul = {.infer = matmul_type,
                        .layouts = {place_product, arrange_product, rows_of_a},
                        .gradient = matmul_gradient,
                        .cost = product_cost,
                        .in_place = {2},
                        .float32_in_place = true,
                        .addends = {2},
                        .linear = 0b100,
                        .meaning =
                            "op(a) op(b) + c, accumulated in float32 and rounded once; tf32: float32 operands may "
                            "be rounded to 10 bits of mantissa; float32: recipes leave it in float32"};
const OpFacts scaled_matmul = {.infer = scaled_matmul_type,
                               .layouts = {place_scaled_product, arrange_scaled_product, rows_of_a},
                               .no_gradient = "made after autodiff",
                               .cost = product_cost,
                               .in_place = {4},
                               .float32_in_place = true,
                               .addends = {4},
                               .linear = 0b10000,
                               .meaning =
                                   "matmul of dequantized codes (+ c); those of b less their zero points; order: how "
                                   "the codes of b lie (docs/ir.md), absent: row after row"};

}  // namespace octet::facts
