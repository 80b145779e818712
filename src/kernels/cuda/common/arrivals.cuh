// The last block of a grid to arrive reduces the partial results of all: one kernel in place of two, or of a kernel and
// the clearing of its result. Arrivals are counted in words of the device context that are 0 between kernels
// (DeviceContext::counters) and are 0 again when the last block is through, so that a replayed graph finds them so.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"

namespace octet::cuda {

// Where a kernel leaves the amax of what its grid makes.
inline constexpr int kAmaxWords = 2;
struct GridAmax {
  float* to = nullptr;        // [1], null: not wanted
  uint32_t* words = nullptr;  // [kAmaxWords] of DeviceContext::counters: the largest bits so far, arrivals
};

// True for the last of `expected` calls, which then sees what the others wrote before theirs. By one thread of a block,
// after a barrier where other threads of it have written.
__device__ __forceinline__ bool arrives_last(uint32_t* count, uint32_t expected) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;\n"
               : "=r"(before)
               : "l"(count), "r"(expected - 1)
               : "memory");
  return before + 1 == expected;
}

// Every block of a one-dimensional grid calls it once, with the magnitude bits of each of its threads. `scratch` holds
// 32 words of shared memory that nothing else uses from here on.
__device__ __forceinline__ void join_amax(const GridAmax& amax, uint32_t bits, uint32_t* scratch) {
  if (amax.to == nullptr) return;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = (static_cast<int>(blockDim.x) + 31) >> 5;
  bits = warp_max(bits);
  if (lane == 0) scratch[warp] = bits;
  __syncthreads();
  if (warp != 0) return;
  bits = warp_max(lane < warps ? scratch[lane] : 0u);
  if (lane != 0) return;
  if (bits > 0) atomicMax(amax.words, bits);
  if (arrives_last(amax.words + 1, gridDim.x)) *amax.to = __uint_as_float(atomicExch(amax.words, 0u));
}

// The largest magnitude among the values of type T that a thread sees, and where it goes. bf16 values go in pairs.
template <typename T>
struct Amax {
  static constexpr bool kPairs = std::is_same_v<T, bf16>;
  GridAmax grid;
  uint32_t largest = 0;

  __device__ __forceinline__ bool wanted() const { return grid.to != nullptr; }
  template <int kVec>
  __device__ __forceinline__ void see(const Vec<T, kVec>& v) {
    if constexpr (kPairs && kVec > 1) {
#pragma unroll
      for (uint32_t word : reinterpret_cast<const Packed<T, kVec>&>(v).words)
        largest = __vmaxu2(largest, word & 0x7fff7fffu);
    } else if constexpr (kPairs) {
      largest = __vmaxu2(largest, __bfloat16_as_ushort(v.at[0]) & 0x7fffu);
    } else {
      unroll<kVec>([&](int k) { largest = max(largest, magnitude_bits(to_float(v.at[k]))); });
    }
  }
  __device__ __forceinline__ uint32_t bits() const {
    return kPairs ? max(largest << 16, largest & 0xffff0000u) : largest;
  }
  __device__ __forceinline__ void end(uint32_t* scratch) const { join_amax(grid, bits(), scratch); }
};

}  // namespace octet::cuda
