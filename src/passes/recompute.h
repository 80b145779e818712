// Recompute: what backward makes again instead of keeping it from forward.
//
// none: nothing. light: what takes little time: FP8 codes of values that are kept anyway or one activation away from
// them, in one pass of the Target's, and silu where the gradient of its product makes it on the way. selective: what is
// large to keep and cheap to make: nodes the facts allow, FLOPs per byte kept below a bound, from values that are kept
// or cheap themselves; never products or attention. full: everything inside a layer (by layer index) is made again from
// what enters the layer. Clones have phase recompute and stand right before their first reader; they read the forward's
// scales and random counters, and nothing reads their amax.
//
// Beside that, but under none: an activation that is stored for current scaling alone is computed twice in forward, for
// its amax and for its codes, on GPUs whose Target fuses both: no more bytes are moved, and none are held between.
//
// Steps: recompute_backward; recompute_for_codes, which is the last of these.
#pragma once

#include "passes/pass.h"

namespace octet {

bool recompute(Program& program, const CompileOptions& options);
std::span<const Step> recompute_steps();

}  // namespace octet
