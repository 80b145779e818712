// Dropout's bits for fragments of tensor cores: runs of neighbouring elements, a Philox block of four words at a time.
//
// Lanes draw before the products of a tile, while no scores are in registers.
#pragma once

#include "kernels/cuda/attention/problem.h"
#include "kernels/cuda/common/philox.cuh"

namespace octet::cuda::mma {

struct DropoutBits {
  RandomStream stream;
  uint32_t last_dropped;  // a word is kept when it is larger: (word >> 8) >= threshold, also for 2^24

  __device__ static DropoutBits of(const AttentionProblem& p, const int64_t* rng) {
    return {RandomStream::of(rng, p.key), (p.threshold << 8) - 1};
  }
  // Bit i: element 4 block + i is kept.
  __device__ __forceinline__ uint32_t kept(int64_t block) const {
    const uint4 w = stream.words(static_cast<uint64_t>(block));
    return (w.x > last_dropped ? 1u : 0u) | (w.y > last_dropped ? 2u : 0u) | (w.z > last_dropped ? 4u : 0u) |
           (w.w > last_dropped ? 8u : 0u);
  }
};

// Of 64 elements: bit i of low is element i, bit i of high element 32 + i.
struct Kept64 {
  uint32_t low = 0, high = 0;
  __device__ __forceinline__ bool operator[](int i) const { return ((i < 32 ? low : high) >> (i % 32) & 1) != 0; }
};

// Elements [first, first + 64): the four lanes of a quad share the work and all get the bits, shifted down by `shift`
// (< 8, at the cost of the last `shift` of either half); they must give the same `first`. Negative elements give any
// bits.
__device__ __forceinline__ Kept64 kept_64(const DropoutBits& site, int64_t first, int shift) {
  const int lane = static_cast<int>(threadIdx.x) % 4, skip = static_cast<int>(first & 3);
  const int64_t block = first >> 2;
  Kept64 bits;
  bits.low = (site.kept(block + lane) | site.kept(block + 4 + lane) << 16) << (4 * lane);
  bits.high = (site.kept(block + 8 + lane) | site.kept(block + 12 + lane) << 16) << (4 * lane);
  bits.low |= __shfl_xor_sync(0xffffffffu, bits.low, 1);
  bits.high |= __shfl_xor_sync(0xffffffffu, bits.high, 1);
  bits.low |= __shfl_xor_sync(0xffffffffu, bits.low, 2);
  bits.high |= __shfl_xor_sync(0xffffffffu, bits.high, 2);
  if (skip != 0) {  // begins inside a block
    bits.low = __funnelshift_r(bits.low, bits.high, skip);
    bits.high = __funnelshift_r(bits.high, site.kept(block + 16), skip);
  }
  bits.low >>= shift, bits.high >>= shift;
  return bits;
}

// Bit i: element first + i is kept, i < 16.
__device__ __forceinline__ uint32_t kept_16(const DropoutBits& site, int64_t first) {
  const int64_t block = first >> 2;
  uint32_t bits = site.kept(block) | site.kept(block + 1) << 4 | site.kept(block + 2) << 8 | site.kept(block + 3) << 12;
  if ((first & 3) != 0) bits |= site.kept(block + 4) << 16;
  return bits >> (first & 3);
}

}  // namespace octet::cuda::mma
