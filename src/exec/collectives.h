// The collectives on the reference tensors of one rank: what they mean.
#pragma once

#include "dist/communicator.h"
#include "ir/program.h"
#include "kernels/cpu/reference.h"

namespace octet {

// Makes the program that of this rank (ir/localize.h); throws kInvalidArgument where it is one for another mesh.
void join_mesh(Program& program, const Communicator* ranks);

// Results of a collective node of a graph with a mesh; all ranks of its group run it. Sums add the parts in order of
// ranks, in float32 (float64 unless `round_f32`), and are rounded once to the value's type.
std::vector<cpu::RefTensor> run_collective(const Graph& graph, const Node& node, cpu::RefInputs in, Communicator& ranks,
                                           bool round_f32);

}  // namespace octet
