// The last block of a grid joins what all blocks have left: one kernel where there were two, or a kernel and the
// clearing of its result. Arrivals are counted in words of the device context that are 0 between kernels
// (DeviceContext::counters) and are 0 again when the last block is through, so that a replayed graph finds them so.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octet::cuda {

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

// The amax of what a grid makes, as bits; every block of a one-dimensional grid arrives once.
inline constexpr int kAmaxWords = 2;
struct GridAmax {
  float* to = nullptr;        // null: not wanted
  uint32_t* words = nullptr;  // [kAmaxWords] counters: the largest bits so far, arrivals

  // `scratch` holds 32 words of shared memory nobody else uses from here on.
  __device__ __forceinline__ void join(uint32_t bits, uint32_t* scratch) const {
    if (to == nullptr) return;
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int warps = (static_cast<int>(blockDim.x) + 31) >> 5;
    bits = __reduce_max_sync(0xffffffffu, bits);
    if (lane == 0) scratch[warp] = bits;
    __syncthreads();
    if (warp != 0) return;
    bits = __reduce_max_sync(0xffffffffu, lane < warps ? scratch[lane] : 0u);
    if (lane != 0) return;
    if (bits > 0) atomicMax(words, bits);
    if (arrives_last(words + 1, gridDim.x)) *to = __uint_as_float(atomicExch(words, 0u));
  }
};

}  // namespace octet::cuda
