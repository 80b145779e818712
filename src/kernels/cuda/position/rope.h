// Rotary embedding: x [T, heads D] of f32, bf16 or f16, positions i32[T].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

struct RopePlan {
  int tokens = 0, heads = 0, dim = 0, pairs = 0;  // pairs: rotary_dim / 2
  bool interleaved = false;
  float sign = 1;                       // -1 turns back
  const double* frequencies = nullptr;  // device f64[pairs]
};

// x and y may be the same memory. amax [1]: of y as it is stored; y, or the amax, may be null. `amaxes` [tokens]:
// scratch where there is an amax.
void launch_rope(DType dtype, const RopePlan& plan, const void* x, const int32_t* positions, void* y, float* amax,
                 uint32_t* amaxes, int sm_count, cudaStream_t stream);

}  // namespace octet::cuda
