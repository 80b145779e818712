// plan_memory: every value gets a buffer and an offset; peak bytes are known exactly.
#pragma once

#include <string>
#include <vector>

#include "ir/plan.h"
#include "passes/pass.h"

namespace octet {

// Liveness in node order, views and in-place where the facts allow, mandatory aliasing of state updates (an update
// whose value cannot be computed in place costs a copy step: see docs/ir.md), offsets by best fit over lifetimes.
Plan plan_memory(Program program, const Target& target);

// What a value of so many bytes takes in the arena.
int64_t arena_bytes_of(int64_t bytes, const Target& target);

// What fills the memory at the fullest moment of a plan: every piece of the arena that is live there.

// A piece of memory, under the name of the value that was first made in it.
struct LivePiece {
  std::string name, op;
  int32_t layer = -1;
  TensorType type;
  int64_t bytes = 0;             // with alignment
  int32_t first = 0, last = -1;  // nodes between which it is held; what outlives the graph has last = its size
  bool kept = false;             // made in the forward phase for the backward phase
};

// The graph with the largest arena.
const Graph& peak_graph(const Plan& plan);
// Largest first; their bytes add up to the graph's live_bytes.
std::vector<LivePiece> live_at_peak(const Plan& plan, const Graph& graph);

// Checks a Plan by walking its graphs as an executor would: no result is written over bytes that are still to be read.

// Throws kInternal naming the graph, the node and both values. Independent of how the plan was made; about as fast as
// planning, so compile() runs it whenever it verifies.
void check_plan(const Plan& plan);

}  // namespace octet
