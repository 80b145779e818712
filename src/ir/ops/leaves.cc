// Leaves: what a graph reads. Their types are given, not inferred.
#include "ir/ops/common.h"

namespace octet::facts {
namespace {

ops::Types given_type(const Graph&, const Node& node) {
  ops::require(node.results.size() == 1, node, "{} result types given (want 1)", node.results.size());
  return node.results;
}

Cost no_cost(const Graph&, const Node&) { return {}; }
Cost filled(const Graph& graph, const Node& node) { return {0, ops::moved_bytes(graph, node)}; }

}  // namespace

const OpFacts input = {.infer = given_type,
                       .no_gradient = "a leaf",
                       .cost = no_cost,
                       .precision = {ResultPrecision::kUnchanged},
                       .meaning = "a tensor the caller writes before each run"};
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
