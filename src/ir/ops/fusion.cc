// The fusion node: a body graph whose inputs are this node's inputs in order, run as one kernel.
#include "ir/ops/common.h"

namespace octet::facts {
namespace {

using namespace ops;

Types fusion_type(const Graph& graph, const Node& node) {
  attr<std::string>(node, "kind");
  require(node.body != nullptr, node, "the body is missing");
  const Graph& body = *node.body;
  size_t i = 0;
  for (const Node& leaf : body.nodes()) {
    require(leaf.op != Op::kParam && leaf.op != Op::kState, node, "the body reads {} itself (want inputs only)",
            leaf.name);
    if (leaf.op != Op::kInput) continue;
    require(i < node.inputs.size(), node, "the body has more inputs than the node's {}", node.inputs.size());
    require(input_type(graph, node, i) == leaf.results[0], node, "input {} is {}, the body's {} is {}", i,
            input_type(graph, node, i), leaf.name, leaf.results[0]);
    ++i;
  }
  require(i == node.inputs.size(), node, "the body has {} inputs, the node {}", i, node.inputs.size());
  require(!body.outputs().empty() && body.updates().empty(), node,
          "the body has {} outputs and {} updates (want >0, 0)", body.outputs().size(), body.updates().size());
  Types types;
  for (const NamedValue& output : body.outputs()) types.push_back(body.type(output.value));
  return types;
}

// The work of the body; only inputs and results move.
Cost fusion_cost(const Graph& graph, const Node& node) {
  double flops = 0;
  for (const Node& inner : node.body->nodes()) flops += op_facts(inner.op).cost(*node.body, inner).flops;
  return {flops, moved_bytes(graph, node)};
}

}  // namespace

const OpFacts fusion = {.infer = fusion_type,
                        .no_gradient = "made after autodiff",
                        .cost = fusion_cost,
                        .precision = {ResultPrecision::kKeep},
                        .meaning =
                            "a body graph as one node, made by the fuse pass; attr kind; results are the body's "
                            "outputs in order, each value rounded where the body defines it"};

}  // namespace octet::facts
