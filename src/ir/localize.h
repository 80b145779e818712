// What differs from rank to rank of one sharded program: which part of the whole a node sees.
//
// A program is the same text for all ranks. An executor of one rank puts the place of the rank into attributes (first,
// origin, first_head, all_heads, counted) of the nodes whose results depend on it, so that kernels read it there.
#pragma once

#include "ir/program.h"

namespace octet {

// Sets these attributes for the rank at `at`; bodies of fusions too. Nothing changes in a graph of one rank.
void localize(Graph& graph, const Coordinate& at);
// The same in all graphs; placements of states that are cut become those of what this rank holds, once.
void localize(Program& program, const Coordinate& at);

// Whether the node, or one of its body, has such an attribute: a kernel must know it.
bool is_localized(const Node& node);

}  // namespace octet
