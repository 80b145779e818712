// Sums and maxima over warps and blocks, in a fixed order: the same bits every run.
#pragma once

#include <cstdint>

namespace octet::cuda {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

struct Sum {
  static constexpr float kIdentity = 0.0f;
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct Max {  // of plain numbers; NaN is lost: amax travels as bits, below
  static constexpr float kIdentity = -3.402823466e38f;
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// The larger; a NaN in either goes through.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// Over 2 kLanes neighbouring lanes: all of them get the result.
template <typename Op, int kLanes = 16>
__device__ __forceinline__ float warp_reduce(float x, Op op = {}) {
#pragma unroll
  for (int lanes = kLanes; lanes > 0; lanes >>= 1) x = op(x, __shfl_xor_sync(kWholeWarp, x, lanes));
  return x;
}

// Every thread gets the result. `scratch` holds 32 floats of shared memory; the call begins and ends with a barrier.
template <typename Op>
__device__ __forceinline__ float block_reduce(float x, float* scratch, Op op = {}) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = (static_cast<int>(blockDim.x) + 31) >> 5;
  x = warp_reduce(x, op);
  __syncthreads();
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = lane < warps ? scratch[lane] : Op::kIdentity;
  x = warp_reduce(x, op);
  __syncthreads();
  return x;
}

// amax as the bits of |x|: integer order puts NaN above infinity above every number, whatever the order of elements.
__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ __forceinline__ uint32_t warp_max(uint32_t x) { return __reduce_max_sync(kWholeWarp, x); }
// Every thread gets the block's largest. `scratch` holds 32 words of shared memory; ends with a barrier.
__device__ __forceinline__ uint32_t block_max(uint32_t x, uint32_t* scratch) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = (static_cast<int>(blockDim.x) + 31) >> 5;
  x = warp_max(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = warp_max(lane < warps ? scratch[lane] : 0u);
  __syncthreads();
  return x;
}
// One atomic a block into `amax` (f32 read as bits), which must have been set to 0 on the same stream before.
__device__ __forceinline__ void block_amax(uint32_t x, float* amax) {
  __shared__ uint32_t largest[32];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = (static_cast<int>(blockDim.x) + 31) >> 5;
  x = warp_max(x);
  if (lane == 0) largest[warp] = x;
  __syncthreads();
  if (warp == 0) {
    x = warp_max(lane < warps ? largest[lane] : 0u);
    if (lane == 0) atomicMax(reinterpret_cast<uint32_t*>(amax), x);
  }
  __syncthreads();
}

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
