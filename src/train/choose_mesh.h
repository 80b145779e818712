// How many ranks each axis of a run gets where its settings leave that open.
#pragma once

#include <string>

#include "train/run_config.h"

namespace octet {

struct MeshChoice {
  Mesh mesh;
  std::string note;    // what was chosen and why; "": the settings say all
  bool fewer = false;  // than the settings want
};

// The mesh of `config` on `count` ranks, GPUs or what else `source` names ("ranks of mpirun"). An axis that is 0 gets
// what the others leave: parallel.data the most that divide the micro-batches of a step, which may leave some of
// `count` over; the others all of it. Where the settings want more than `count`, parallel.restarts above 0 gives
// parallel.data what is left, too. Throws kInvalidArgument with the values that would do.
MeshChoice choose_mesh(const RunConfig& config, int64_t count, const std::string& source);

}  // namespace octet
