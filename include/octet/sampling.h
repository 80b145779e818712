// How tokens are drawn: plain data of a request. octet::validate(SamplingOptions) in the engine checks the ranges.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace octet {

// Applied in this order: allowed-token mask, logit bias, penalties, temperature, top-k, top-p, min-p.
struct SamplingOptions {
  double temperature = 1.0;         // 0 = greedy
  int64_t top_k = 0;                // keep the k likeliest; 0 = off
  double top_p = 1.0;               // of these the fewest whose probability reaches p; 1 = off, 0 = greedy
  double min_p = 0.0;               // of these those with at least min_p times the likeliest's probability
  double repetition_penalty = 1.0;  // logits of tokens of prompt and output: divided by it if positive, else multiplied
  double presence_penalty = 0.0;    // subtracted once for tokens of the output
  double frequency_penalty = 0.0;   // subtracted for every occurrence in the output
  std::map<int32_t, float> logit_bias = {};  // token -> added to its logit; -infinity forbids it
  uint64_t seed = 0;                         // the same seed gives the same tokens, whatever runs beside it
};

}  // namespace octet
