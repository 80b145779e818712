// Recompute: what backward makes again instead of keeping it from forward.
//
// none: nothing. selective: what is large to keep and cheap to make: nodes the facts allow, FLOPs per byte kept below a
// bound, from values that are kept or cheap themselves; never products or attention. full: everything inside a layer
// (by layer index) is made again from what enters the layer. Clones have phase recompute and stand right before their
// first reader; they read the forward's scales and random counters, and nothing reads their amax.
#pragma once

#include "passes/pass.h"

namespace octet {

// Graph level: the graph with backward reading clones. `kNone` returns it unchanged.
Graph recompute_graph(const Graph& graph, Recompute kind);

bool recompute(Program& program, const CompileOptions& options);

}  // namespace octet
