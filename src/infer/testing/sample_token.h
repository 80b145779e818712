// For tests: the token chosen by a request's options from a row of logits, by the definition of op `sample`.
#pragma once

#include <memory>
#include <vector>

#include "base/error.h"
#include "infer/sampler.h"

namespace octet {

// For `position` of sequence `sequence`. Throws kInternal when the logits hold no finite value.
inline int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, int64_t sequence,
                            int64_t position) {
  std::vector<int32_t> tokens(logits.size());
  const auto scratch = std::make_unique_for_overwrite<SampleScratch>();
  scratch->tokens = tokens;
  const int32_t token = sample_from(logits, sample_row(options, sequence, position), *scratch);
  check(token >= 0, ErrorCode::kCorrupt,
        "sampling: none of {} logits is finite: check that the weights and config.json belong together", logits.size());
  return token;
}

// Op adjust_logits on a row of logits [V].
inline void adjust(const TokenCounts& counts, std::span<float> logits) {
  std::vector<int32_t> entries;
  std::vector<float> values;
  counts.append_entries(0, entries, values);
  for (size_t i = 0; i < entries.size() / 2; ++i) {
    const float bias = values[3 * i], repetition = values[3 * i + 1], penalty = values[3 * i + 2];
    float& logit = logits[static_cast<size_t>(entries[2 * i + 1])];
    const float biased = logit + bias;
    logit = (biased > 0 ? biased / repetition : biased * repetition) - penalty;
  }
}

}  // namespace octet
