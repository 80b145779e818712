// The fusion node: a body graph whose inputs are this node's inputs in order, run as one kernel.

#include <algorithm>

#include "ir/ops/layouts.h"

namespace octet::facts {

namespace {

using namespace ops;

Types fusion_type(const Graph& graph, const Node& node) {
  require(node.body != nullptr, node, "the body is missing");
  const Graph& body = *node.body;
  for (const Node& leaf : body.nodes())
    require(leaf.op != Op::kParam && leaf.op != Op::kState, node, "the body reads {} itself (want inputs only)",
            leaf.name);
  const size_t inputs = body.inputs().size();
  require(inputs == node.inputs.size(), node, "the body has {} inputs, the node {}", inputs, node.inputs.size());
  for (size_t i = 0; i < inputs; ++i) {
    const Node& leaf = body.node(body.inputs()[i]);
    require(input_type(graph, node, i) == leaf.results[0], node, "input {} is {}, the body's {} is {}", i,
            input_type(graph, node, i), leaf.name, leaf.results[0]);
  }
  require(!body.outputs().empty() && body.updates().empty(), node,
          "the body has {} outputs and {} updates (want >0, 0)", body.outputs().size(), body.updates().size());
  Types types;
  for (const NamedValue& output : body.outputs()) types.push_back(body.type(output.value));
  return types;
}

// Those of the body's outputs, from the layouts of its inputs.
Layouts place_fusion(const Graph& graph, const Node& node) {
  const Graph& body = *node.body;
  size_t i = 0;
  for (const NodeId leaf : body.inputs()) require_is(graph, node, i++, body.layout({leaf, 0}), "as the body's");
  Layouts results;
  for (const NamedValue& output : body.outputs()) results.push_back(body.layout(output.value));
  return results;
}

// The work of the body; only inputs and results move. Of what is overwritten in place, only what the member writes: its
// own bytes less its other operands.
Cost fusion_cost(const Graph& graph, const Node& node) {
  const Graph& body = *node.body;
  Cost cost{0, moved_bytes(graph, node)};
  for (int input : overwritten_inputs(node)) {
    cost.bytes -= 2 * static_cast<double>(input_type(graph, node, static_cast<size_t>(input)).bytes());
  }
  for (const Node& inner : body.nodes()) {
    const Cost own = op_facts(inner.op).cost(body, inner);
    cost.flops += own.flops;
    const std::vector<int> overwritten = overwritten_inputs(inner);
    if (overwritten.empty()) continue;
    double others = 0;
    for (size_t i = 0; i < inner.inputs.size(); ++i) {
      const bool in_place = std::ranges::find(overwritten, static_cast<int>(i)) != overwritten.end();
      if (inner.inputs[i].exists() && !in_place) others += static_cast<double>(input_type(body, inner, i).bytes());
    }
    cost.bytes += std::max(0.0, own.bytes - others);
  }
  return cost;
}

// Leaves: what a graph reads. Their types are given, not inferred.
ops::Types given_type(const Graph&, const Node& node) {
  ops::require(node.results.size() == 1, node, "{} result types given (want 1)", node.results.size());
  return node.results;
}

Cost filled(const Graph& graph, const Node& node) { return {0, ops::moved_bytes(graph, node)}; }

}  // namespace

const OpFacts fusion = {.infer = fusion_type,
                        .layouts = {place_fusion},
                        .no_gradient = "made after autodiff",
                        .cost = fusion_cost,
                        .precision = {ResultPrecision::kUnchanged},
                        .meaning =
                            "a body graph as one node, made by the fuse pass; results are the body's "
                            "outputs in order, each value rounded where the body defines it"};

const OpFacts input = {.infer = given_type,
                       .no_gradient = "a leaf",
                       .cost = no_cost,
                       .precision = {ResultPrecision::kUnchanged},
                       .meaning =
                           "a tensor the caller writes before each run; elements that it leaves out are pad, or (rest) "
                           "the last one again, or as they were; optional: it may leave out all; rows batch: dim 0 is "
                           "the tokens of the micro-batch"};
const OpFacts param = {.infer = given_type,
                       .no_gradient = "a leaf",
                       .cost = no_cost,
                       .meaning = "a parameter of the model, an entry of the state table"};
const OpFacts state = {.infer = given_type,
                       .no_gradient = "a leaf",
                       .cost = no_cost,
                       .precision = {ResultPrecision::kUnchanged},
                       .meaning = "an entry of the state table, as it is before the graph's updates"};
const OpFacts constant = {.infer = given_type,
                          .no_gradient = "a leaf",
                          .cost = filled,
                          .precision = {ResultPrecision::kFloat32},
                          .cheap_to_recompute = true,
                          .meaning = "every element is value"};

}  // namespace octet::facts
