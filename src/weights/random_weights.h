// Weights for benchmarks and tests of speed: distributed as fresh ones are, taken again and again from one pool,
// because making billions of different values would take minutes.
#pragma once

#include <cstdint>

#include "exec/executor.h"

namespace octet {

// Fills masters and codes: tables and matrices with normal values of deviation 0.02, vectors as they are initialized,
// scales with 1; then prepares.
void fill_random_weights(Executor& executor, uint64_t seed);

}  // namespace octet
