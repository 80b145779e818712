// group_updates: many small nodes become a few fusions, each one launch, for targets that name their kinds.
//
// "adamw_group": up to 32 parameters, each with the casts and amaxes of its refreshed weights, read once. Members are
// "adamw<n>", "cast<n>", "amax<n>". "update_scales_group": the scales and histories of delayed scaling ("scale<n>").
// "maximum_group": amaxes over micro-batches ("maximum<n>"). Runs after pack, which changes the shapes of parameters.
#pragma once

#include "passes/pass.h"

namespace octet {

bool group_updates(Program& program, const CompileOptions& options);

}  // namespace octet
