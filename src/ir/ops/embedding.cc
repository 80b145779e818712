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
  require_arithmetic(graph, node, 1);
  require_rank(graph, node, 1, 2);
  const TensorType& table = input_type(graph, node, 1);
  return {{table.dtype, {tokens, table.shape[1]}}};
}

Types embedding_grad_type(const Graph& graph, const Node& node) {
  int64_t tokens = require_ids(graph, node);
  require_arithmetic(graph, node, 1);
  require_rank(graph, node, 1, 2);
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
  return {table.only(1).with_cuts_of(ids, 0, 0).with_due(Pending::kSum, table.cut_axes(0))};
}

// The table is cut by the axes of `over`: c says how, but need not be there.
Layouts place_embedding_grad(const Graph& graph, const Node& node) {
  require_settled(graph, node, 0);
  const Layout &ids = input_layout(graph, node, 0), &dy = input_layout(graph, node, 1);
  require_layout(dy == dy.only(1).with_cuts_of(ids, 0, 0), graph, node, 1, "rows as the ids, nothing pending");
  const std::string& over = node.attr<std::string>("over");
  const AxisList rows = over.empty() ? AxisList{} : parse_axes(over);
  require_layout((AxisSet(rows) & dy.cut_axes()).empty(), graph, node, 1, "cut by no axis that cuts the table's rows");
  const Layout table = dy.only(1).with(0, rows).with_due(Pending::kSum, ids.cut_axes());
  require_is(graph, node, 2, table, "as the result");
  return {table};
}

void embedding_gradient(GradientContext& context) {
  int64_t rows = context.graph().shape(context.input(1))[0];
  context.add_gradient(
      1, emit_gradient(context, Op::kEmbeddingGrad, {context.input(0), context.gradient(0)}, {{"rows", rows}}));
}

// Only the rows looked up are read.
Cost lookup_cost(const Graph& graph, const Node& node) {
  return {0,
          static_cast<double>(input_type(graph, node, 0).bytes()) + 2.0 * static_cast<double>(node.results[0].bytes())};
}

}  // namespace

const OpFacts embedding = {.infer = embedding_type,
                           .place = place_embedding,
                           .gradient = embedding_gradient,
                           .cost = lookup_cost,
                           .cheap_to_recompute = true,
                           .meaning = "row ids[t] of the table; ids outside it are the caller's error"};
const OpFacts embedding_grad = {
    .infer = embedding_grad_type,
    .place = place_embedding_grad,
    .no_gradient = "is a gradient",
    .cost = [](const Graph& graph, const Node& node) -> Cost {
      return {static_cast<double>(input_shape(graph, node, 1).elements()), moved_bytes(graph, node)};
    },
    .precision = {ResultPrecision::kFloat32},
    .in_place = {2},
    .meaning = "c (or 0) plus dy[t] added to row ids[t]; rows = V"};

}  // namespace octet::facts
