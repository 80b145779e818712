// What fills the memory at the fullest moment of a plan: every piece of the arena that is live there.
#pragma once

#include <string>
#include <vector>

#include "ir/plan.h"

namespace octet {

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

}  // namespace octet
