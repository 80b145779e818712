// AttentionProblem of a node, for the rows.
#pragma once

#include "ir/graph.h"
#include "kernels/cuda/attention/problem.h"

namespace octet::cuda {

AttentionProblem attention_problem(const Graph& graph, const Node& node);

}  // namespace octet::cuda
