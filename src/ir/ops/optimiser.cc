// The optimiser step: all float32. The non-finite flag predicates every update.
#include "ir/ops/common.h"

namespace octet::facts {
namespace {

using namespace ops;

const TensorType kSquareSum{DType::kF64, {1}};

Types square_sum_type(const Graph& graph, const Node& node) {
  for (size_t i = 0; i < node.inputs.size(); ++i) require_arithmetic(graph, node, i);
  return {kSquareSum};
}

Types clip_factor_type(const Graph& graph, const Node& node) {
  require_type(graph, node, 0, kSquareSum);
  return {f32({1}), f32({1}), f32({1})};
}

Cost square_sum_cost(const Graph& graph, const Node& node) {
  double elements = 0;
  for (Value input : node.inputs) elements += static_cast<double>(graph.shape(input).elements());
  return {2 * elements, moved_bytes(graph, node)};
}

Types adamw_type(const Graph& graph, const Node& node) {
  TensorType type = f32(input_shape(graph, node, 0));
  require_type(graph, node, 0, type);
  require_arithmetic(graph, node, 1);
  require(input_shape(graph, node, 1) == type.shape, node, "the gradient is {}, the parameter {}",
          input_shape(graph, node, 1), type.shape);
  require_type(graph, node, 2, type);
  require_type(graph, node, 3, type);
  for (size_t i = 4; i < 8; ++i) require_type(graph, node, i, f32({1}));
  return {type, type, type};
}

}  // namespace

const OpFacts square_sum = {.infer = square_sum_type,
                            .no_gradient = "optimiser",
                            .cost = square_sum_cost,
                            .precision = {ResultPrecision::kUnchanged},
                            .meaning =
                                "the sum of the squares of all elements of all inputs; not finite when an element is "
                                "not"};
const OpFacts clip_factor = {
    .infer = clip_factor_type,
    .no_gradient = "optimiser",
    .cost = per_result_element<4>,
    .precision = {ResultPrecision::kFloat32},
    .meaning =
        "norm = sqrt(square_sum); clip = min(1, max_norm / (norm + 1e-6)), 1 when max_norm is 0 or norm is NaN; "
        "finite = 1 when square_sum is finite, else 0"};
const OpFacts adamw = {
    .infer = adamw_type,
    .no_gradient = "optimiser",
    .cost = per_input_element<16>,
    .precision = {ResultPrecision::kFloat32},
    .in_place = {0},
    .in_place_others = {{1, 2}, {2, 3}},
    .members_independent = true,
    .meaning =
        "g = grad clip; p *= 1 - lr weight_decay; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; p -= "
        "lr / (1 - beta1^step) m / (sqrt(v / (1 - beta2^step)) + eps); nothing changes when finite is 0"};

}  // namespace octet::facts
