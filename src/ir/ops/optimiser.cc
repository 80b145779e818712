// The optimiser step: all float32. The non-finite flag predicates every update.
#include "ir/ops/layouts.h"

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

// An absent moment has a result all the same.
Types update_type(const Graph& graph, const Node& node) {
  const OpFacts& facts = op_facts(node.op);
  const auto moments = static_cast<size_t>(facts.moments), first_moment = static_cast<size_t>(facts.first_moment),
             first_scalar = static_cast<size_t>(facts.first_scalar);
  TensorType type = f32(input_shape(graph, node, 0));
  require_type(graph, node, 0, type);
  require_arithmetic(graph, node, 1);
  require(input_shape(graph, node, 1) == type.shape, node, "the gradient is {}, the parameter {}",
          input_shape(graph, node, 1), type.shape);
  for (size_t i = first_moment; i < first_moment + moments; ++i)
    if (i < node.inputs.size() && node.inputs[i].exists()) require_type(graph, node, i, type);
  for (size_t i = first_scalar; i < first_scalar + static_cast<size_t>(facts.scalars); ++i)
    require_type(graph, node, i, f32({1}));
  return Types(1 + moments, type);
}

// Every element is counted on one rank: of operands that an axis does not cut, on the first of that axis. The stages of
// a pipeline have operands of their own, or (stages = false) the operand is one of this stage.
Layouts place_square_sum(const Graph& graph, const Node& node) {
  const bool stages = graph.mesh()[Axis::kPipeline] > 1 && node.attr<bool>("stages");
  AxisSet axes = stages ? AxisSet(Axis::kPipeline) : AxisSet();
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    require_settled(graph, node, i);
    axes = axes | input_layout(graph, node, i).cut_axes();
  }
  return {Layout().with_pending(Pending::kSum, axes)};
}

// Parameter, gradient and moments lie alike; each part is updated where it is.
Layouts place_update(const Graph& graph, const Node& node) {
  const OpFacts& facts = op_facts(node.op);
  const Layout& param = input_layout(graph, node, 0);
  require_settled(graph, node, 0);
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    if (static_cast<int>(i) >= facts.first_scalar && static_cast<int>(i) < facts.first_scalar + facts.scalars)
      require_copies(graph, node, i);
    else
      require_is(graph, node, i, param, "as the parameter");
  }
  return Layouts(node.results.size(), param);
}

void arrange_square_sum(LayoutRequest& request) {
  for (size_t i = 0; i < request.node().inputs.size(); ++i) request.redistribute(i, request.update_layout(i));
}

// Within the stage first: all stages make one exchange of a pipeline.
void arrange_clip_factor(LayoutRequest& request) {
  if (request.layout(0).pending_axes(Pending::kSum).has(Axis::kPipeline))
    request.redistribute(0, Layout().with_pending(Pending::kSum, Axis::kPipeline));
  request.redistribute(0, {});
}

void arrange_update(LayoutRequest& request) {
  const OpFacts& facts = op_facts(request.node().op);
  const Layout param = request.layout(0);
  for (int i = 1; i < std::ssize(request.node().inputs); ++i)
    request.redistribute(static_cast<size_t>(i),
                         i >= facts.first_scalar && i < facts.first_scalar + facts.scalars ? Layout() : param);
}

Types trust_ratio_type(const Graph& graph, const Node& node) {
  for (size_t i = 0; i < 2; ++i) require_type(graph, node, i, kSquareSum);
  for (size_t i = 2; i < node.inputs.size(); ++i)
    if (node.inputs[i].exists()) require_type(graph, node, i, f32({1}));
  return {f32({1})};
}

Types blend_type(const Graph& graph, const Node& node) {
  TensorType state = f32(input_shape(graph, node, 0));
  for (size_t i = 0; i < 2; ++i) require_type(graph, node, i, state);
  for (const char* scalar : {"count", "finite"}) require_optional(graph, node, scalar, f32({1}));
  return {std::move(state)};
}

Types sgd_type(const Graph& graph, const Node& node) {
  const double momentum = node.attr<double>("momentum");
  const bool buffer = node.operand("m").exists();
  require(buffer == (momentum != 0), node, "momentum is {} and the momentum buffer is {}", momentum,
          buffer ? "given" : "absent");
  return update_type(graph, node);
}

OpFacts update_facts(OpFacts facts) {
  facts.no_gradient = "optimiser";
  facts.precision = {ResultPrecision::kFloat32};
  facts.in_place = {0};
  for (int i = 0; i < facts.moments; ++i) facts.in_place_others.emplace_back(i + 1, facts.first_moment + i);
  facts.members_independent = true;
  return facts;
}

}  // namespace

const OpFacts square_sum = {.infer = square_sum_type,
                            .layouts = {place_square_sum, arrange_square_sum},
                            .no_gradient = "optimiser",
                            .cost = square_sum_cost,
                            .precision = {ResultPrecision::kUnchanged},
                            .members_independent = true,
                            .meaning =
                                "the sum of the squares of all elements of all inputs, of all stages of a pipeline "
                                "unless stages is false; not finite when an element is not"};
const OpFacts clip_factor = {
    .infer = clip_factor_type,
    .layouts = {place_whole, arrange_clip_factor},
    .no_gradient = "optimiser",
    .cost = per_result_element<4>,
    .precision = {ResultPrecision::kFloat32},
    .meaning =
        "norm = sqrt(square_sum); clip = min(1, max_norm / (norm + 1e-6)), 1 when max_norm is 0 or norm is NaN; "
        "finite = 1 when square_sum is finite, else 0"};
const OpFacts adamw = update_facts(
    {.infer = update_type,
     .layouts = {place_update, arrange_update},
     .cost = per_input_element<16>,
     .moments = 2,
     .meaning =
         "g = grad clip; p *= 1 - lr weight_decay; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; p -= "
         "lr / (1 - beta1^step) m / (sqrt(v / (1 - beta2^step)) + eps); nothing changes when finite is 0"});
const OpFacts sgd = update_facts(
    {.infer = sgd_type,
     .layouts = {place_update, arrange_update},
     .cost = per_input_element<7>,
     .moments = 1,
     .first_moment = 6,
     .first_scalar = 2,
     .meaning =
         "g = grad clip + weight_decay p; m = momentum m + g; p -= lr (g + momentum m with nesterov, else m; g without "
         "momentum); with rate_inside m = momentum m + lr g; p -= lr g + momentum m with nesterov, else m; nothing "
         "changes when finite is 0"});
const OpFacts adam_direction = update_facts(
    {.infer = update_type,
     .layouts = {place_update, arrange_update},
     .cost = per_input_element<16>,
     .moments = 2,
     .scalars = 3,
     .meaning = "g = grad clip; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; direction = m / (1 - "
                "beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay p; when finite is 0, m and v stay and "
                "the direction is p"});
const OpFacts trust_ratio = {
    .infer = trust_ratio_type,
    .layouts = kWhole,
    .no_gradient = "optimiser",
    .cost = per_result_element<8>,
    .precision = {ResultPrecision::kFloat32},
    .members_independent = true,
    .meaning =
        "p, u = sqrt(params), clip sqrt(updates); rate = lr coefficient p / (u + weight_decay p + eps), lr when p "
        "or u is 0"};

const OpFacts blend = {
    .infer = blend_type,
    .layouts = {place_elementwise, arrange_elementwise},
    .no_gradient = "optimiser",
    .cost = per_result_element<4>,
    .precision = {ResultPrecision::kFloat32},
    .in_place = {0},
    .meaning = "state + rate (value / count - state), by 1 without count; state where finite or count is 0"};

}  // namespace octet::facts
