// What the norm kernels share: groups of eight neighbouring elements of a row, and reductions over a team of threads.
//
// A row belongs to a warp or a block. Thread t of n holds groups t, t + n, ...: group g is columns 8 g .. 8 g + 7.
// Sums run in one order per number of columns, so that every kernel gives the same statistics. A block's sum over
// groups (group_sums) does not depend on n either: within a group in order, 32 neighbouring groups as a tree, then
// their sums as a tree; few rows take many threads each, and a row has the same bits among few and among many.
#pragma once

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/norm/choose.h"

namespace octet::cuda {

// Weights and biases have a type of their own.
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

// a + b, rounded to T: for bf16 the exact sum rounds once, and so it does by way of float32, which holds every sum of
// two bf16 to far more bits than a tie of theirs needs.
template <typename T>
__device__ __forceinline__ Packed<T, kGroup> add_packed(const Packed<T, kGroup>& a, const Packed<T, kGroup>& b) {
  Packed<T, kGroup> sum;
#pragma unroll
  for (int w = 0; w < sum.kWords; ++w) {
    if constexpr (sizeof(T) == 4) {
      sum.words[w] = __float_as_uint(__uint_as_float(a.words[w]) + __uint_as_float(b.words[w]));
    } else {
      asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum.words[w]) : "r"(a.words[w]), "r"(b.words[w]));
    }
  }
  return sum;
}

// Eight elements at an address of shared memory.
template <typename T>
__device__ __forceinline__ Packed<T, kGroup> load_shared(uint32_t address) {
  Packed<T, kGroup> packed;
#pragma unroll
  for (int w = 0; w < packed.kWords; w += 4) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(packed.words[w]), "=r"(packed.words[w + 1]), "=r"(packed.words[w + 2]),
                   "=r"(packed.words[w + 3])
                 : "r"(address + 4 * w)
                 : "memory");
  }
  return packed;
}

// kCount sums over a warp at once, each as the tree of warp_reduce: halves of the warp go on with half of the sums
// each, so that four cost one shuffle more than one. Lane l returns sum number `which`; 4 sums are kCount = 3 too.
template <int kCount>
__device__ __forceinline__ float warp_sums(const float (&x)[kCount], int& which) {
  const bool high = (threadIdx.x & 16) != 0, low = (threadIdx.x & 8) != 0;
  which = 0;
  if constexpr (kCount == 1) {
    return warp_reduce<Sum>(x[0]);
  } else if constexpr (kCount == 2) {
    which = high ? 1 : 0;
    float sum = (high ? x[1] : x[0]) + __shfl_xor_sync(kWholeWarp, high ? x[0] : x[1], 16);
    return warp_reduce<Sum, 8>(sum);
  } else {
    const float last = kCount == 4 ? x[3] : 0.0f;
    which = (high ? 2 : 0) + (low ? 1 : 0);
    const float even = (high ? x[2] : x[0]) + __shfl_xor_sync(kWholeWarp, high ? x[0] : x[2], 16),
                odd = (high ? last : x[1]) + __shfl_xor_sync(kWholeWarp, high ? x[1] : last, 16);
    float sum = (low ? odd : even) + __shfl_xor_sync(kWholeWarp, low ? even : odd, 8);
    return warp_reduce<Sum, 4>(sum);
  }
}

// The sum over the threads of a row: a warp, or the block. Blocks alternate between two halves of `scratch` [2][64]:
// one barrier a sum.
inline constexpr int kTeamScratch = 128;
template <bool kWarp>
struct BlockReduce {
  static constexpr bool kWhole = false;  // whether no thread has groups past the end
  float* scratch;
  int turn = 0;
  __device__ __forceinline__ int thread() const { return kWarp ? threadIdx.x & 31 : threadIdx.x; }
  __device__ __forceinline__ int threads() const { return kWarp ? 32 : blockDim.x; }
  __device__ __forceinline__ float sum(float value) {
    value = warp_reduce<Sum>(value);
    if constexpr (kWarp) return value;
    float* part = scratch + turn * 64;
    turn ^= 1;
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = value;
    __syncthreads();
    const int warps = blockDim.x >> 5, lane = threadIdx.x & 31;
    return warp_reduce<Sum>(lane < warps ? part[lane] : 0.0f);
  }
  // The row's sum of what its groups sum up to: x[g] is that of the thread's group g, 0 past the end. A warp adds a
  // thread's groups first. Up to 64 warps' shares of 32 groups.
  template <int kGroups>
  __device__ __forceinline__ float group_sums(const float (&x)[kGroups]) {
    if constexpr (kWarp) {
      float mine = x[0];
#pragma unroll
      for (int g = 1; g < kGroups; ++g) mine += x[g];
      return warp_reduce<Sum>(mine);
    }
    constexpr int kSums = kGroups == 3 ? 4 : kGroups;
    int which;
    const float sum = warp_sums(x, which);
    float* part = scratch + turn * 64;
    turn ^= 1;
    const int warps = blockDim.x >> 5, lane = threadIdx.x & 31;
    if (lane % (32 / kSums) == 0) part[which * warps + (threadIdx.x >> 5)] = sum;
    __syncthreads();
    const int shares = kSums * warps;
    return warp_reduce<Sum>((lane < shares ? part[lane] : 0.0f) + (lane + 32 < shares ? part[lane + 32] : 0.0f));
  }
  __device__ __forceinline__ uint32_t max_bits(uint32_t bits) {
    bits = warp_max(bits);
    if constexpr (kWarp) return bits;
    auto* part = reinterpret_cast<uint32_t*>(scratch + turn * 64);
    turn ^= 1;
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = bits;
    __syncthreads();
    const int warps = blockDim.x >> 5, lane = threadIdx.x & 31;
    return warp_max(lane < warps ? part[lane] : 0u);
  }
};

// A warp that sums up as a block does: shares of 32 neighbouring groups as trees of lanes, then the tree of the shares.
template <bool kAll>
struct WarpReduce : BlockReduce<true> {
  static constexpr bool kWhole = kAll;
  template <int kGroups>
  __device__ __forceinline__ float group_sums(const float (&x)[kGroups]) {
    static_assert(kGroups == 3 || kGroups == 4);
    int which;  // share 2 h + l lies in the lanes whose bits 16 and 8 are h and l
    float sum = warp_sums(x, which);
    sum += __shfl_xor_sync(kWholeWarp, sum, 16);
    sum += __shfl_xor_sync(kWholeWarp, sum, 8);
    return sum + 0.0f;  // the tree of 32 adds zeros: -0 becomes 0
  }
};

// Sums of kRows rows at once over a block of up to 16 warps with a group a thread and row, each in the order of
// group_sums. `scratch` [2][64] holds zeros before the first.
template <int kRows>
struct MultiRowBlockReduce {
  static constexpr int kLanes = 32 / kRows;  // of a warp, that add up the shares of a row
  float* scratch;
  int turn = 0;
  // Returns the sum of row (lane / kLanes).
  __device__ __forceinline__ float sums(const float (&x)[kRows]) {
    static_assert(kRows == 2 || kRows == 4);
    const int lane = threadIdx.x & 31;
    int which;
    const float share = warp_sums(x, which);
    float* part = scratch + turn * 64;
    turn ^= 1;
    if (lane % kLanes == 0) part[which * 16 + (threadIdx.x >> 5)] = share;
    __syncthreads();
    const float* from = part + lane / kLanes * 16 + lane % kLanes;
    const float sum = kLanes == 8 ? from[0] + from[8] : from[0];
    return warp_reduce<Sum, kLanes / 2>(sum) + 0.0f;  // the tree of 32 adds zeros: -0 becomes 0
  }
  __device__ __forceinline__ static float of_row(float sum, int r) { return __shfl_sync(kWholeWarp, sum, r * kLanes); }
};

// One or two sums at once over a block.
struct PairedBlockReduce {
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

// Raises an amax; for most rows it is high enough already.
__device__ __forceinline__ void raise_amax(float* amax, uint32_t bits) {
  auto* at = reinterpret_cast<uint32_t*>(amax);
  if (bits > *reinterpret_cast<volatile uint32_t*>(at)) atomicMax(at, bits);
}

}  // namespace octet::cuda
