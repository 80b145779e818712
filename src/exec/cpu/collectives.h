// Collectives on the CPU executor: bytes travel by a Communicator, sums are made here.
#pragma once

#include "dist/communicator.h"
#include "kernels/cpu/kernel.h"

namespace octet::cpu {

// A collective node of a graph with a mesh, on the rank that `ranks` is; it must outlive the kernel. What travels is
// cut into pieces that fit the workspace. Sums add the parts in order of ranks in float32 (float64 for f64) and are
// rounded once to the value's type: exec/collectives.h, on bytes.
BoundKernel bind_collective(const Graph& graph, const Node& node, Communicator& ranks);

}  // namespace octet::cpu
