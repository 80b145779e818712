// plan_memory: every value gets a buffer and an offset; peak bytes are known exactly.
#pragma once

#include "passes/pass.h"

namespace octet {

// Liveness in node order, views and in-place where the facts allow, mandatory aliasing of state updates (an update
// whose value cannot be computed in place costs a copy step: see docs/ir.md), offsets by best fit over lifetimes.
Plan plan_memory(Program program, const Target& target);

// What a value of so many bytes takes in the arena.
int64_t arena_bytes_of(int64_t bytes, const Target& target);

}  // namespace octet
