// Weights for benchmarks and tests of speed: distributed as fresh ones are, taken again and again from one pool,
// because making billions of different values would take minutes.
#pragma once

#include <cstdint>

#include "exec/executor.h"

namespace octet {

// Fills every kParam and kQuantized state: tables and matrices with normal values of deviation 0.02, norms' weights and
// scales with 1, biases with 0; then runs "prepare" when there is one.
void fill_random_weights(Executor& executor, uint64_t seed);

}  // namespace octet
