// Random device data for benchmarks.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

// Standard normal values in device memory, rounded to the type (any float, FP8 included); never zeros, which run faster
// than data does.
void fill_random(DType dtype, void* data, int64_t elements, uint64_t seed);

}  // namespace octet::cuda
