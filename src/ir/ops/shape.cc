// Ops that move elements, and reductions (always float32).
#include "ir/builder.h"
#include "ir/ops/layouts.h"

namespace octet::facts {
namespace {

using namespace ops;

Types reshape_type(const Graph& graph, const Node& node) {
  const TensorType& x = input_type(graph, node, 0);
  Shape shape(node.attr<std::vector<int64_t>>("shape"));
  int64_t elements = 1;
  for (int64_t dim : shape.dims) {
    bool good = dim > 0 && !__builtin_mul_overflow(elements, dim, &elements);
    require(good, node, "attribute shape is {} (want positive dims)", shape);
  }
  require(elements == x.shape.elements(), node, "{} has {} elements, {} has {}", x.shape, x.shape.elements(), shape,
          elements);
  return {{x.dtype, std::move(shape)}};
}

int64_t axis_attr(const Node& node, int rank) {
  int64_t axis = node.attr<int64_t>("axis");
  require(axis < rank, node, "axis is {} of a tensor of rank {}", axis, rank);
  return axis;
}

Types slice_type(const Graph& graph, const Node& node) {
  TensorType type = input_type(graph, node, 0);
  int64_t axis = axis_attr(node, type.shape.rank());
  int64_t& dim = type.shape.dims[static_cast<size_t>(axis)];
  int64_t begin = node.attr<int64_t>("begin"), end = node.attr<int64_t>("end");
  require(begin < end && end <= dim, node, "[{}, {}) of axis {} of {}", begin, end, axis, type.shape);
  dim = end - begin;
  return {std::move(type)};
}

Types concat_type(const Graph& graph, const Node& node) {
  TensorType type = input_type(graph, node, 0);
  auto axis = static_cast<size_t>(axis_attr(node, type.shape.rank()));
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    TensorType part = input_type(graph, node, i);
    bool same_rank = part.shape.rank() == type.shape.rank();
    int64_t size = same_rank ? part.shape.dims[axis] : 0;
    if (same_rank) part.shape.dims[axis] = type.shape.dims[axis];
    require(same_rank && part == type, node, "input {} is {}, input 0 {}: they may differ in axis {} only", i,
            input_type(graph, node, i), input_type(graph, node, 0), axis);
    type.shape.dims[axis] += size;
  }
  return {std::move(type)};
}

Types transpose_type(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  const TensorType& x = input_type(graph, node, 0);
  return {{x.dtype, {x.shape[1], x.shape[0]}}};
}

Types reduce_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  return {f32({node.attr<std::string>("axis") == "all" ? 1 : input_shape(graph, node, 0).cols()})};
}

Types select_rows_type(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  const TensorType &x = input_type(graph, node, 0), &rows = input_type(graph, node, 1);
  require(rows.dtype == DType::kI32 && rows.shape.rank() == 1, node, "rows are {} (want i32[R])", rows);
  return {{x.dtype, {rows.shape[0], x.shape[1]}}};
}

Types segment_mean_type(const Graph& graph, const Node& node) {
  require_rank(graph, node, 0, 2);
  require_arithmetic(graph, node, 0);
  const TensorType& segments = input_type(graph, node, 1);
  require(segments.dtype == DType::kI32 && segments.shape.rank() == 1 && segments.shape[0] > 1, node,
          "segments are {} (want i32[S+1])", segments);
  return {f32({segments.shape[0] - 1, input_shape(graph, node, 0).cols()})};
}

// A cut follows its axis: [before, outer, axis, rest] of x are before' and outer' of a dim of the result. Where parts
// of one element leave a choice of that dim, cut_to says it for each cut dim of x.
Layouts place_reshape(const Graph& graph, const Node& node) {
  const Layout& x = input_layout(graph, node, 0);
  const Shape &from = input_shape(graph, node, 0), &to = node.results[0].shape;
  const auto& cut_to = node.attr<std::vector<int64_t>>("cut_to");
  Layout result = Layout();
  result.pending = x.pending;
  int64_t before = 1;
  size_t cut = 0;
  for (int d = 0; d < from.rank(); before *= from[d++]) {
    if (x.cut_axes(d).empty()) continue;
    const int64_t start = before * x.outer(d);
    int64_t other = 1;
    int r = 0;
    const int last = cut < cut_to.size() ? static_cast<int>(cut_to[cut++]) : to.rank() - 1;
    require(last < to.rank(), node, "cut_to names dim {} of {}", last, to);
    while (r < last && start % (other * to[r]) == 0) other *= to[r++];
    const int64_t outer = start / other;
    require_layout(start % other == 0 && to[r] % outer == 0 && result.cut_axes(r).empty(), graph, node, 0,
                   "dim {} whole: no part of a dim of {} begins where it is cut", d, to);
    result = result.with(r, x.cut_axes(d), outer);
  }
  return {result};
}

void arrange_reshape(LayoutRequest& request) {
  Node& node = request.node();
  const Layout& x = request.layout(0);
  const Shape& from = request.shape(0);
  std::vector<int64_t> shape = node.attr<std::vector<int64_t>>("shape");
  // The dim of `to` at which what lies `start` apart begins.
  const auto dim_at = [](int64_t start, const std::vector<int64_t>& to, int64_t& other) {
    size_t r = 0;
    for (other = 1; r + 1 < to.size() && start % (other * to[r]) == 0;) other *= to[r++];
    return r;
  };
  std::vector<int64_t> cut_to, starts;
  int64_t before = 1, other = 1;
  for (int d = 0; d < from.rank(); before *= from[d++]) {
    if (x.cut_axes(d).empty()) continue;
    const int64_t start = before * x.outer(d);
    const size_t r = dim_at(start, shape, other);
    const int64_t parts = request.graph().mesh().parts(x.cut_axes(d));
    if (start % other != 0 || shape[r] % (start / other * parts) != 0) {
      request.redistribute(0, x.whole(d));
      return arrange_reshape(request);
    }
    shape[r] /= parts;
    cut_to.push_back(static_cast<int64_t>(r));
    starts.push_back(start);
  }
  for (size_t i = 0; i < starts.size(); ++i)  // what remains of a dim may look like another
    if (dim_at(starts[i], shape, other) != static_cast<size_t>(cut_to[i])) node.attrs.set("cut_to", cut_to);
  node.attrs.set("shape", shape);
}

void arrange_along_axis(LayoutRequest& request) {
  const auto axis = static_cast<int>(request.node().attr<int64_t>("axis"));
  const size_t operands = request.node().inputs.size();
  for (size_t i = 0; i < operands; ++i) request.redistribute(i, request.layout(i).whole(axis));
  for (size_t i = 1; i < operands; ++i)  // what is there whole becomes no part of a sum
    if (request.layout(0).is_pending() && request.layout(i).pending != request.layout(0).pending) request.reduce(0);
  for (size_t i = 1; i < operands; ++i) request.redistribute(i, request.layout(0));
}

// A sum of parts joins sums that are pending.
void arrange_reduce(LayoutRequest& request) {
  if (request.node().attr<std::string>("reduction") != "sum") request.reduce(0);
}

bool rows_of_reshape(const Graph& graph, const Node& node, size_t, size_t) {
  return input_shape(graph, node, 0)[0] == node.results[0].shape[0];
}
bool rows_along_axis(const Graph&, const Node& node, size_t, size_t) { return node.attr<int64_t>("axis") != 0; }

Layouts place_transpose(const Graph& graph, const Node& node) { return {input_layout(graph, node, 0).moved({1, 0})}; }

// What is reduced over parts is yet to be joined.
Layouts place_reduce(const Graph& graph, const Node& node) {
  const Layout& x = input_layout(graph, node, 0);
  const bool sum = node.attr<std::string>("reduction") == "sum";
  const Pending kind = sum ? Pending::kSum : Pending::kMax;
  require_layout(Layout().with_pending(kind, x.pending_axes(kind)).pending == x.pending && (sum || !x.is_pending()),
                 graph, node, 0, "nothing pending{}", sum ? " but a sum" : "");
  const int last = input_rank(graph, node, 0) - 1;
  const Layout kept = node.attr<std::string>("axis") == "all" ? Layout() : Layout().with_cuts_of(x, last, 0);
  return {kept.with_pending(kind, x.pending_axes(kind) | (x.cut_axes() - kept.cut_axes()))};
}

Layouts place_select_rows(const Graph& graph, const Node& node) {
  require_settled(graph, node, 0);
  require_whole(graph, node, 0, 0);
  require_copies(graph, node, 1);
  return {input_layout(graph, node, 0)};
}

// Columns stay with their ranks.
void arrange_select_rows(LayoutRequest& request) {
  request.reduce(0);
  const int last = request.whole_shape(0).rank() - 1;
  request.redistribute(0, Layout().with_cuts_of(request.layout(0), last, last));
  request.redistribute(1, {});
}

void reshape_gradient(GradientContext& context) {
  std::vector<int64_t> dims = context.graph().shape(context.input(0)).dims;
  context.add_gradient(0, emit_gradient(context, Op::kReshape, {context.gradient(0)}, {{"shape", std::move(dims)}}));
}

// dx = [zeros, dy, zeros]
void slice_gradient(GradientContext& context) {
  const Node& node = context.node();
  int64_t axis = node.attr<int64_t>("axis"), begin = node.attr<int64_t>("begin"), end = node.attr<int64_t>("end");
  Value dy = context.gradient(0);
  TensorType type = context.graph().type(dy);
  int64_t size = context.graph().shape(context.input(0))[static_cast<int>(axis)];
  std::vector<Value> parts;
  auto pad = [&](int64_t length) {
    type.shape[static_cast<int>(axis)] = length;
    if (length > 0) parts.push_back(context.builder().constant(0, type.shape, type.dtype));
  };
  pad(begin);
  parts.push_back(dy);
  pad(size - end);
  context.add_gradient(0, parts.size() == 1 ? dy : emit_gradient(context, Op::kConcat, parts, {{"axis", axis}}));
}

void concat_gradient(GradientContext& context) {
  int64_t axis = context.node().attr<int64_t>("axis"), begin = 0;
  for (int i = 0; i < static_cast<int>(context.node().inputs.size()); ++i) {
    int64_t end = begin + context.graph().shape(context.input(i))[static_cast<int>(axis)];
    if (context.wants(i)) {
      Attrs attrs = {{"axis", axis}, {"begin", begin}, {"end", end}};
      context.add_gradient(i, emit_gradient(context, Op::kSlice, {context.gradient(0)}, std::move(attrs)));
    }
    begin = end;
  }
}

void transpose_gradient(GradientContext& context) {
  context.add_gradient(0, emit_gradient(context, Op::kTranspose, {context.gradient(0)}));
}

// Every element of x adds to its sum with factor 1: dy broadcast to x.
void reduce_gradient(GradientContext& context) {
  const std::string& kind = context.node().attr<std::string>("reduction");
  check(kind == "sum", ErrorCode::kUnsupported, "reduce: no gradient through reduction {} in node {}", kind,
        context.node().name);
  TensorType x = context.graph().type(context.input(0));
  Value ones = context.builder().constant(1, x.shape, x.dtype);
  context.add_gradient(0, emit_gradient(context, Op::kMul, {ones, context.gradient(0)}));
}

void select_rows_gradient(GradientContext& context) {
  TensorType x = context.graph().type(context.input(0));
  Value sum =
      emit_gradient(context, Op::kEmbeddingGrad, {context.input(1), context.gradient(0)}, {{"rows", x.shape[0]}});
  context.add_gradient(0, context.builder().cast(sum, x.dtype));
}

// What is read is as large as what is written.
Cost copy_cost(const Graph&, const Node& node) { return {0, 2.0 * static_cast<double>(node.results[0].bytes())}; }

}  // namespace

const OpFacts reshape = {.infer = reshape_type,
                         .layouts = {place_reshape, arrange_reshape, rows_of_reshape},
                         .gradient = reshape_gradient,
                         .cost = no_cost,
                         .in_place = {0},
                         .linear = 1,
                         .view = true,
                         .cheap_to_recompute = true,
                         .meaning = "the same elements under shape"};
const OpFacts slice = {.infer = slice_type,
                       .layouts = {place_along_axis, arrange_along_axis, rows_along_axis},
                       .gradient = slice_gradient,
                       .cost = copy_cost,
                       .linear = 1,
                       .cheap_to_recompute = true,
                       .meaning = "elements [begin, end) of axis"};
const OpFacts concat = {.infer = concat_type,
                        .layouts = {place_along_axis, arrange_along_axis, rows_along_axis},
                        .gradient = concat_gradient,
                        .cost = copy_cost,
                        .linear = ~0U,
                        .cheap_to_recompute = true,
                        .meaning = "the inputs one after another along axis"};
const OpFacts transpose = {.infer = transpose_type,
                           .layouts = {place_transpose, arrange_as_given},
                           .gradient = transpose_gradient,
                           .cost = copy_cost,
                           .linear = 1,
                           .cheap_to_recompute = true,
                           .meaning = "[R, C] -> [C, R]"};
const OpFacts reduce = {.infer = reduce_type,
                        .layouts = {place_reduce, arrange_reduce},
                        .gradient = reduce_gradient,
                        .cost = per_input_element<1>,
                        .precision = {ResultPrecision::kFloat32},
                        .cheap_to_recompute = true,
                        .meaning =
                            "sum, max or amax (of |x|) in float32 over all but the last dim (axis "
                            "rows -> [C]) or everything (axis all -> [1]); NaN goes through"};
const OpFacts select_rows = {.infer = select_rows_type,
                             .layouts = {place_select_rows, arrange_select_rows, rows_of<0b10>},
                             .gradient = select_rows_gradient,
                             .cost = copy_cost,
                             .cheap_to_recompute = true,
                             .meaning = "row rows[r] of x, zeros for -1; other rows outside it are the caller's error"};
const OpFacts segment_mean = {.infer = segment_mean_type,
                              .layouts = {place_select_rows, arrange_whole},
                              .no_gradient = "inference only",
                              .cost = per_input_element<1>,
                              .precision = {ResultPrecision::kFloat32},
                              .meaning = "the mean of each segment's rows of x in float32; 0 of one without rows"};

}  // namespace octet::facts
