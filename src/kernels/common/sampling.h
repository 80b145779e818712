// Choosing a token from a row of logits: the definition of op `sample` (ir/ops/sampling.cc) for float rows. The host's
// sampler and the CPU's kernel both call it.
//
// The Gumbel-max trick: the largest of logit / T + g, g independent standard Gumbel values, is distributed as the
// softmax at temperature T, so no normaliser is needed, and the choice is a pure function of (logits, SampleRow).
#pragma once

#include <cstdint>
#include <span>

#include "base/rng.h"

namespace octet {

// One row of op `sample`: its params, top_k and seeds, in the types they have there.
struct SampleRow {
  float temperature = 1;  // 0: the largest logit
  float top_p = 1;        // keep the fewest likeliest tokens whose probability reaches top_p
  float min_p = 0;        // keep tokens with at least min_p of the likeliest's probability
  int32_t top_k = 0;      // keep the k likeliest; 0 = all
  int64_t seed = 0, sequence = 0, position = 0;

  bool filters(int64_t vocab) const { return (top_k > 0 && top_k < vocab) || top_p < 1 || min_p > 0; }
};

// The words of tokens 4 block .. 4 block + 3.
inline PhiloxBlock sample_words(const SampleRow& row, int64_t block) {
  return graph_random(static_cast<uint64_t>(row.seed), static_cast<uint64_t>(row.position),
                      static_cast<uint32_t>(row.sequence), 0, static_cast<uint64_t>(block));
}
// -log(-log u) of u = (upper 24 bits of the word + 1/2) / 2^24.
double gumbel_from_bits(uint32_t word);

// Scratch of sample_from: room for one id a token of the row, and sums by bin.
struct SampleScratch {
  static constexpr int kBins = 4096;
  std::span<int32_t> tokens;  // [V]
  double masses[kBins];
};

// The lowest id of the largest finite logit; -1 when there is none.
int32_t largest_logit(std::span<const float> logits);
// The row's token; -1 when no logit is finite. A logit that is not finite is never chosen. Linear in the row's length:
// nothing is sorted but the tokens of one of 4096 bins, where the last kept token lies.
int32_t sample_from(std::span<const float> logits, const SampleRow& row, SampleScratch& scratch);

}  // namespace octet
