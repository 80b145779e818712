// Table lookup and its gradient, a sum of rows in float32.

#include "ir/builder.h"
#include "ir/ops/layouts.h"

namespace octet::facts {

namespace {

using namespace ops;

int64_t require_ids(const Graph& graph, const Node& node) {
  const TensorType& ids = input_type(graph, node, 0);
  require(ids.dtype == DType::kI32 && ids.shape.rank() == 1, node, "ids are {} (want i32[T])", ids);
  return ids.shape[0];
}

Types embedding_type(const Graph& graph, const Node& node) {
  int64_t tokens = require_ids(graph, node);
  require_matrix(graph, node, 1);
  const TensorType& table = input_type(graph, node, 1);
  return {{table.dtype, {tokens, table.shape[1]}}};
}

Types embedding_grad_type(const Graph& graph, const Node& node) {
  int64_t tokens = require_ids(graph, node);
  require_matrix(graph, node, 1);
  const Shape& dy = input_shape(graph, node, 1);
  require(dy[0] == tokens, node, "dy is {} for {} ids", dy, tokens);
  TensorType result = f32({node.attr<int64_t>("rows"), dy[1]});
  require_optional(graph, node, "c", result);
  return {std::move(result)};
}

// A rank gives the rows that its part of the table has, and zeros for the others: a sum.
Layouts place_embedding(const Graph& graph, const Node& node) {
  require_settled(graph, node, 0);
  require_settled(graph, node, 1);
  const Layout& ids = input_layout(graph, node, 0);
  const Layout& table = input_layout(graph, node, 1);
  require_layout((ids.cut_axes() & table.cut_axes()).empty(), graph, node, 1, "cut by no axis that cuts the ids");
  return {table.only(1).with_cuts_of(ids, 0, 0).with_pending(Pending::kSum, table.cut_axes(0))};
}

// The table is cut by the axes of `over`: c says how, but need not be there.
Layouts place_embedding_grad(const Graph& graph, const Node& node) {
  require_settled(graph, node, 0);
  const Layout &ids = input_layout(graph, node, 0), &dy = input_layout(graph, node, 1);
  require_layout(dy == dy.only(1).with_cuts_of(ids, 0, 0), graph, node, 1, "rows as the ids, nothing pending");
  const std::string& over = node.attr<std::string>("over");
  const AxisList rows = over.empty() ? AxisList{} : parse_axes(over);
  require_layout((AxisSet(rows) & dy.cut_axes()).empty(), graph, node, 1, "cut by no axis that cuts the table's rows");
  const Layout table = dy.only(1).with(0, rows).with_pending(Pending::kSum, ids.cut_axes());
  require_is(graph, node, 2, table, "as the result");
  return {table};
}

// A table that is there whole is read for this rank's rows alone.
void arrange_embedding(LayoutRequest& request) {
  request.reduce(0);
  if (request.layout(1).cuts.empty() && request.is_rows(0))
    request.redistribute(0, Layout().with(0, request.row_axes()));
}

void arrange_embedding_grad(LayoutRequest& request) {
  Node& node = request.node();
  const AxisList over = request.parameter_layout().cut_axes(0);
  request.reduce(1);
  AxisList rows = request.layout(1).cut_axes(0);
  std::erase_if(rows, [&](Axis axis) { return AxisSet(over).has(axis); });
  request.redistribute(1, request.layout(1).with(0, rows));
  request.redistribute(0, Layout().with(0, rows));
  if (over.empty()) return;
  node.attrs.set("over", print(over));
  node.attrs.set("rows", node.attr<int64_t>("rows") / request.graph().mesh().parts(over));
}

Types coalesce_rows_type(const Graph& graph, const Node& node) {
  const int64_t tokens = require_ids(graph, node);
  require_matrix(graph, node, 1);
  const Shape& rows = input_shape(graph, node, 1);
  require(rows[0] == tokens, node, "rows are {} for {} ids", rows, tokens);
  const int64_t capacity = node.attr<int64_t>("capacity");
  Types types = {{DType::kI32, {capacity}}, f32({capacity, rows[1]})};
  const bool ids = node.operand("c_ids").exists();
  require(ids == node.operand("c_rows").exists(), node, "c_ids are {} and c_rows {}", ids ? "given" : "absent",
          ids ? "absent" : "given");
  require_optional(graph, node, "c_ids", types[0]);
  require_optional(graph, node, "c_rows", types[1]);
  return types;
}

void embedding_gradient(GradientContext& context) {
  if (context.takes_rows(1)) return context.add_gradient_rows(1, context.input(0), context.gradient(0));
  Attrs attrs = {{"rows", context.graph().shape(context.input(1))[0]}};
  if (const Attr* first = context.node().attrs.find("first")) attrs.set("first", *first);
  context.add_gradient(
      1, emit_gradient(context, Op::kEmbeddingGrad, {context.input(0), context.gradient(0)}, std::move(attrs)));
}

// Only the rows looked up are read.
Cost lookup_cost(const Graph& graph, const Node& node) {
  return {0,
          static_cast<double>(input_type(graph, node, 0).bytes()) + 2.0 * static_cast<double>(node.results[0].bytes())};
}

// Rotary positions: pairs of the first rotary_dim elements of every head are turned by position times frequency.
using namespace ops;

Types rope_type(const Graph& graph, const Node& node) {
  require_matrix(graph, node, 0);
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

void arrange_rope(LayoutRequest& request) {
  Node& node = request.node();
  arrange_rows(request);
  node.attrs.set("heads", request.shape(0)[1] / node.attr<int64_t>("head_dim"));
}

void rope_gradient(GradientContext& context) {
  Attrs attrs = context.node().attrs;
  attrs.set("inverse", !context.node().attr<bool>("inverse"));
  context.add_gradient(0, emit_gradient(context, Op::kRope, {context.gradient(0), context.input(1)}, std::move(attrs)));
}

}  // namespace

const OpFacts embedding = {.infer = embedding_type,
                           .layouts = {place_embedding, arrange_embedding, rows_of<1>},
                           .gradient = embedding_gradient,
                           .cost = lookup_cost,
                           .cheap_to_recompute = true,
                           .meaning = "row ids[t] of the table; ids outside it are the caller's error"};
const OpFacts embedding_grad = {
    .infer = embedding_grad_type,
    .layouts = {place_embedding_grad, arrange_embedding_grad},
    .no_gradient = "is a gradient",
    .cost = [](const Graph& graph, const Node& node) -> Cost {
      return {static_cast<double>(input_shape(graph, node, 1).elements()), moved_bytes(graph, node)};
    },
    .precision = {ResultPrecision::kFloat32},
    .in_place = {2},
    .addends = {2},
    .linear = 0b100,
    .meaning = "c (or 0) plus dy[t] added to row ids[t]; rows = V"};
const OpFacts coalesce_rows = {
    .infer = coalesce_rows_type,
    .layouts = kWhole,
    .no_gradient = "is a gradient",
    .cost = [](const Graph& graph, const Node& node) -> Cost {
      return {static_cast<double>(input_shape(graph, node, 1).elements()), moved_bytes(graph, node)};
    },
    .precision = {ResultPrecision::kUnchanged, ResultPrecision::kFloat32},
    .meaning =
        "the distinct ids of c_ids and ids but -1, ascending, then -1; the sums of their rows, c_rows first, then "
        "in order, 0 of -1; more than capacity are an error"};

const OpFacts rope = {
    .infer = rope_type,
    .layouts = {place_rope, arrange_rope, rows_of<0b11>},
    .gradient = rope_gradient,
    .cost = per_result_element<6>,
    .in_place = {0},
    .cheap_to_recompute = true,
    .meaning =
        "rotates pairs of each head's first rotary_dim elements by position x theta^(-2i/rotary_dim); "
        "interleaved: pairs (2i, 2i+1), else (i, i + rotary_dim/2); inverse rotates back; what turns is multiplied by "
        "attention_factor; rotary_dim absent: head_dim"};

}  // namespace octet::facts
