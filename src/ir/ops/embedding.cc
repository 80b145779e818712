// Table lookup and its gradient, a sum of rows in float32.
#include "ir/builder.h"
#include "ir/ops/common.h"

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
                           .gradient = embedding_gradient,
                           .cost = lookup_cost,
                           .cheap_to_recompute = true,
                           .meaning = "row ids[t] of the table; ids outside it are the caller's error"};
const OpFacts embedding_grad = {
    .infer = embedding_grad_type,
    .no_gradient = "is a gradient",
    .cost = [](const Graph& graph, const Node& node) -> Cost {
      return {static_cast<double>(input_shape(graph, node, 1).elements()), moved_bytes(graph, node)};
    },
    .precision = {ResultPrecision::kFloat32},
    .in_place = {2},
    .meaning = "c (or 0) plus dy[t] added to row ids[t]; rows = V"};

}  // namespace octet::facts
