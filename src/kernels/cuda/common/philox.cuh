// graph_random of base/rng.h on the device: the same words for the same counter.
#pragma once

#include <cstdint>

namespace octet::cuda {

// The stream of one dropout site: `rng` is the node's i64[3] input (seed, step, micro-batch) in device memory.
struct RandomStream {
  uint32_t key0, key1, node_key, micro_batch;

  __device__ static uint64_t mix64(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
  }
  __device__ static RandomStream of(const int64_t* rng, uint32_t node_key) {
    const uint64_t key = static_cast<uint64_t>(rng[0]) ^ mix64(static_cast<uint64_t>(rng[1]));
    return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), node_key, static_cast<uint32_t>(rng[2])};
  }
  // The words of elements 4 block .. 4 block + 3.
  __device__ uint4 words(uint64_t block) const {
    uint4 c = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), node_key, micro_batch};
    uint32_t k0 = key0, k1 = key1;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const uint32_t low0 = 0xD2511F53u * c.x, high0 = __umulhi(0xD2511F53u, c.x);
      const uint32_t low1 = 0xCD9E8D57u * c.z, high1 = __umulhi(0xCD9E8D57u, c.z);
      c = {high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return c;
  }
};

}  // namespace octet::cuda
