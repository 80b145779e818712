// Cross entropy against integer targets and its gradient. Losses are float32, one per token; -1 marks ignored tokens.
// Columns from `classes` on are physical padding: they count for nothing and get gradient 0.
#include "ir/builder.h"
#include "ir/ops/layouts.h"

namespace octet::facts {
namespace {

using namespace ops;

int64_t check_logits(const Graph& graph, const Node& node) {
  require_matrix(graph, node, 0);
  int64_t tokens = input_shape(graph, node, 0)[0], columns = input_shape(graph, node, 0)[1];
  require_type(graph, node, 1, {DType::kI32, {tokens}});
  const int64_t all = columns * graph.mesh().parts(graph.layout(node.inputs[0]).cut_axes(1));
  int64_t classes = node.attrs.get_or("classes", all);
  require(classes <= all, node, "classes is {} (want 1 to {})", classes, all);
  return tokens;
}

Types cross_entropy_type(const Graph& graph, const Node& node) {
  int64_t tokens = check_logits(graph, node);
  require_optional(graph, node, "lse", f32({tokens}));
  return {f32({tokens}), f32({tokens})};
}

Types cross_entropy_grad_type(const Graph& graph, const Node& node) {
  int64_t tokens = check_logits(graph, node);
  require_type(graph, node, 2, f32({tokens}));
  require_type(graph, node, 3, f32({tokens}));
  return {input_type(graph, node, 0)};
}

Types row_lse_type(const Graph& graph, const Node& node) {
  require_arithmetic(graph, node, 0);
  require_rank(graph, node, 0, 2);
  return {f32({input_shape(graph, node, 0)[0]})};
}

// Rows and classes lie on any axes; what belongs to a row lies as the rows.
Layout loss_rows(const Graph& graph, const Node& node) {
  const Layout& logits = input_layout(graph, node, 0);
  require_settled(graph, node, 0);
  Layout rows = logits.moved({0, -1});
  for (size_t i = 1; i < node.inputs.size(); ++i) require_is(graph, node, i, rows, "as the rows of logits");
  return rows;
}

void arrange_loss(LayoutRequest& request) {
  Node& node = request.node();
  arrange_rows(request);
  if (!request.layout(0).cut_axes(1).empty() && !node.attrs.has("classes"))
    node.attrs.set("classes", request.whole_shape(0)[1]);
}

// The log-sum-exp of all classes first: a float a row is exchanged.
void arrange_cross_entropy(LayoutRequest& request) {
  arrange_loss(request);
  if (request.layout(0).cut_axes(1).empty() || request.node().operand("lse").exists()) return;
  request.append(Op::kRowLse, 0);
  request.redistribute(2, request.layout(0).moved({0, -1}));
}

// The part with the target's logit gives the loss, the others 0: a sum.
Layouts place_cross_entropy(const Graph& graph, const Node& node) {
  const Layout rows = loss_rows(graph, node);
  const AxisSet classes = input_layout(graph, node, 0).cut_axes(1);
  require_layout(classes.empty() || node.operand("lse").exists(), graph, node, 0,
                 "classes whole where no lse is given");
  return {rows.with_pending(Pending::kSum, classes), rows};
}

Layouts place_cross_entropy_grad(const Graph& graph, const Node& node) {
  loss_rows(graph, node);
  return {input_layout(graph, node, 0)};
}

Layouts place_row_lse(const Graph& graph, const Node& node) {
  return {loss_rows(graph, node).with_pending(Pending::kLse, input_layout(graph, node, 0).cut_axes(1))};
}

// A given log-sum-exp is that of the logits, or of rows they are a part of: what the loss owes the logits through it is
// in their gradient, and none goes to the operand.
void cross_entropy_gradient(GradientContext& context) {
  require_no_gradient(context, 1, "the log-sum-exp of cross_entropy");
  context.add_gradient(0, emit_gradient(context, Op::kCrossEntropyGrad,
                                        {context.input(0), context.input(1), context.result(1), context.gradient(0)},
                                        context.node().attrs));
}

}  // namespace

const OpFacts cross_entropy = {
    .infer = cross_entropy_type,
    .layouts = {place_cross_entropy, arrange_cross_entropy, rows_of<0b11>},
    .gradient = cross_entropy_gradient,
    .cost = per_input_element<4>,
    .precision = {ResultPrecision::kFloat32},
    .meaning =
        "lse = log sum exp(logits), or the given one (of rows that these logits are a part of); loss = lse - "
        "logits[target], 0 where the target is -1; other targets outside [0, V) are the caller's error; V = "
        "classes where columns are padded"};
const OpFacts cross_entropy_grad = {.infer = cross_entropy_grad_type,
                                    .layouts = {place_cross_entropy_grad, arrange_loss, rows_of<0b11>},
                                    .no_gradient = "is a gradient",
                                    .cost = per_input_element<4>,
                                    .in_place = {0},
                                    .meaning = "dloss (exp(logits - lse) - onehot(target)), 0 where the target is -1"};

const OpFacts row_lse = {.infer = row_lse_type,
                         .layouts = {place_row_lse},
                         .no_gradient = "made after autodiff",
                         .cost = per_input_element<3>,
                         .precision = {ResultPrecision::kFloat32},
                         .meaning = "log sum exp of each row, over the classes that this rank holds"};

}  // namespace octet::facts
