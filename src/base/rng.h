// Philox4x32-10, the counter-based generator behind dropout, shuffling, initialisation and sampling.
//
// Counter layout for values drawn inside a graph (docs/numerics.md): words 0-1 = element block (global element / 4),
// word 2 = node key, word 3 = micro-batch; key = the two words of seed ^ mix64(step). The same counter gives the same
// bits on every device. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace octet {

using PhiloxBlock = std::array<uint32_t, 4>;

// Ten rounds over (counter, key). Pure.
PhiloxBlock philox(PhiloxBlock counter, std::array<uint32_t, 2> key);

// The SplitMix64 finaliser, a bijection: spreads small numbers over all bits, so that neighbouring seeds and steps
// never share a key by accident. mix64(0) = 0.
uint64_t mix64(uint64_t value);

// The four words for elements 4*block .. 4*block+3 of node `node_key` in (seed, step, micro_batch).
PhiloxBlock graph_random(uint64_t seed, uint64_t step, uint32_t micro_batch, uint32_t node_key, uint64_t block);

// [0, 1) with 24 bits; never 1.
inline float uniform_from_bits(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// A sequential stream for the host: shuffles, initial weights, sampling. Streams with different ids are independent.
class Philox {
 public:
  // `block`: how many blocks of four words come before the first that it gives.
  explicit Philox(uint64_t seed, uint64_t stream = 0, uint64_t block = 0)
      : seed_(seed), stream_(stream), block_(block) {}
  uint32_t next_u32();
  uint64_t next_u64();
  uint64_t below(uint64_t bound);  // uniform in [0, bound), unbiased; bound > 0
  double uniform();                // [0, 1), 53 bits
  double normal();                 // standard normal (Box-Muller)

 private:
  uint64_t seed_, stream_, block_;
  PhiloxBlock words_{};
  int used_ = 4;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace octet
