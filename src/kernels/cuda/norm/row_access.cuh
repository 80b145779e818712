// What the norm kernels share: groups of eight neighbouring elements of a row, and sums over a team of threads.
//
// A row belongs to a warp or a block. Thread t of n holds groups t, t + n, ...: group g is columns 8 g .. 8 g + 7.
// Sums run in one order per number of columns, so that every kernel gives the same statistics.
#pragma once

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"

namespace octet::cuda {

inline constexpr int kGroup = 8;

// Weights and biases keep their own type beside the activations'.
__device__ __forceinline__ void load_channels(const void* channels, DType dtype, int64_t column, float (&to)[kGroup]) {
  if (dtype == DType::kF32) {
    load(static_cast<const float*>(channels) + column, to);
  } else {
    load(static_cast<const bf16*>(channels) + column, to);
  }
}
__device__ __forceinline__ float load_channel(const void* channels, DType dtype, int64_t column) {
  return dtype == DType::kF32 ? static_cast<const float*>(channels)[column]
                              : to_float(static_cast<const bf16*>(channels)[column]);
}

// The sum over the threads of a row: a warp, or the block. Blocks alternate between two halves of `scratch` [2][32]:
// one barrier a sum.
template <bool kWarp>
struct RowTeam {
  float* scratch;
  int turn = 0;
  __device__ __forceinline__ int thread() const { return kWarp ? threadIdx.x & 31 : threadIdx.x; }
  __device__ __forceinline__ int threads() const { return kWarp ? 32 : blockDim.x; }
  __device__ __forceinline__ float sum(float value) {
    value = warp_reduce<Sum>(value);
    if constexpr (kWarp) return value;
    float* part = scratch + turn * 32;
    turn ^= 1;
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = value;
    __syncthreads();
    const int warps = blockDim.x >> 5, lane = threadIdx.x & 31;
    return warp_reduce<Sum>(lane < warps ? part[lane] : 0.0f);
  }
  __device__ __forceinline__ uint32_t max_bits(uint32_t bits) {
    bits = warp_max(bits);
    if constexpr (kWarp) return bits;
    auto* part = reinterpret_cast<uint32_t*>(scratch + turn * 32);
    turn ^= 1;
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = bits;
    __syncthreads();
    const int warps = blockDim.x >> 5, lane = threadIdx.x & 31;
    return warp_max(lane < warps ? part[lane] : 0u);
  }
};

// One or two sums at once over a block.
struct PairTeam {
  float2* scratch;  // [2][32]
  int turn = 0;
  template <bool kBoth>
  __device__ __forceinline__ float2 sum(float2 value) {
    value.x = warp_reduce<Sum>(value.x);
    if constexpr (kBoth) value.y = warp_reduce<Sum>(value.y);
    float2* part = scratch + turn * 32;
    turn ^= 1;
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = value;
    __syncthreads();
    const int warps = blockDim.x >> 5, lane = threadIdx.x & 31;
    value = lane < warps ? part[lane] : float2{0, 0};
    value.x = warp_reduce<Sum>(value.x);
    if constexpr (kBoth) value.y = warp_reduce<Sum>(value.y);
    return value;
  }
};

inline constexpr int kMaxStages = 8;  // of a ring of rows

// Raises an amax; most rows find it high enough already.
__device__ __forceinline__ void raise_amax(float* amax, uint32_t bits) {
  auto* at = reinterpret_cast<uint32_t*>(amax);
  if (bits > *reinterpret_cast<volatile uint32_t*>(at)) atomicMax(at, bits);
}

}  // namespace octet::cuda
