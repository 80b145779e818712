// group_updates: many small nodes become a few fusions, each one launch, where the Target fuses Producer::kUpdate.
//
// kOptimizer: one optimiser's updates of up to 32 parameters, each with the cast and amax of the new parameter; members
// are "adamw<n>" (the op's name), "cast<n>", "amax<n>". kUpdateScales: scales and histories of delayed scaling
// ("scale<n>"). kMaximum: amaxes over micro-batches ("maximum<n>"). Runs after pack, which changes shapes of
// parameters.
#pragma once

#include "passes/pass.h"

namespace octet {

bool group_updates(Program& program, const CompileOptions& options);

}  // namespace octet
