// The float64 sum of a block.
#pragma once

#include "kernels/cuda/common/reduce.cuh"

namespace octet::cuda {

// Every thread gets the sum, made in a fixed order. `scratch` holds kThreads / 32 doubles.
template <int kThreads>
__device__ double block_sum(double x, double* scratch) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes >>= 1) x += __shfl_xor_sync(kWholeWarp, x, lanes);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  unroll<kThreads / 32>([&](int warp) { x += scratch[warp]; });
  return x;
}

}  // namespace octet::cuda
