// The verifier: structure (SSA order, arity, inferred types, unique leaves, one update per state, types of updates) and
// the legality table of the graph's stage. Throws kInternal naming the graph, node and rule.
#pragma once

#include "ir/graph.h"
#include "ir/program.h"

namespace octet {

bool op_is_legal(Op op, Stage stage);
void verify(const Graph& graph);
void verify(const Program& program);  // every graph, and leaves against the state table

}  // namespace octet
