// group_updates: the optimiser's nodes become a few fusions of kind "adamw_group", for targets that name it: up to 32
// parameters, each with the casts and amaxes of its refreshed weights, in one launch that reads every parameter once.
// Runs after pack, which changes the shapes of parameters. Members are "adamw<n>", "cast<n>", "amax<n>".
#pragma once

#include "passes/pass.h"

namespace octet {

bool group_updates(Program& program, const CompileOptions& options);

}  // namespace octet
