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
        "sampling: none of {} logits is finite: are the weights, and the numbers of config.json, the model's own?",
        logits.size());
  return token;
}

}  // namespace octet
