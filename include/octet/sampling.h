// Sampling options of a request; the engine checks their ranges.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace octet {

// Applied in this order: allowed-token mask, logit bias, penalties, temperature, top-k, top-p, min-p.
struct SamplingOptions {
  double temperature = 1.0;         // 0 = greedy
  int64_t top_k = 0;                // keep the k most likely tokens; 0 = off
  double top_p = 1.0;               // keep the smallest set of these whose probability reaches p; 1 = off, 0 = greedy
  double min_p = 0.0;               // keep those with at least min_p times the largest probability
  double repetition_penalty = 1.0;  // divides positive logits of prompt and output tokens, multiplies negative ones
  double presence_penalty = 0.0;    // subtracted once from logits of output tokens
  double frequency_penalty = 0.0;   // subtracted for each occurrence in the output
  std::map<int32_t, float> logit_bias = {};  // token -> added to its logit; -infinity forbids it
  uint64_t seed = 0;                         // the same seed gives the same tokens, in any batch
};

}  // namespace octet
