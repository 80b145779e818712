// The words of graph_random (base/rng.h) for consecutive elements, several Philox blocks at a time.
#pragma once

#include <cstdint>

namespace octet::cpu {

// Identifies the random stream of one node in one micro-batch.
struct RandomStream {
  uint32_t key[2];  // of seed and step
  uint32_t node_key, micro_batch;
  static RandomStream of(const int64_t* seed_step_micro, uint32_t node_key);
};

// Words are generated in groups of this many elements; a buffer for n elements has random_buffer_words(n) words.
inline constexpr int64_t kRandomGroup = 32;
inline int64_t random_buffer_words(int64_t count) {
  return (count + 3 + kRandomGroup - 1) / kRandomGroup * kRandomGroup;
}

// The words of elements [first, first + count): element first + i at result[i]; result points into `buffer`.
const uint32_t* random_words(const RandomStream& stream, uint64_t first, int64_t count, uint32_t* buffer);

}  // namespace octet::cpu
