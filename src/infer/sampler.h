// Sampling one token from logits on the host: greedy, temperature, top-k, top-p, a seed.
#pragma once

#include <cstdint>
#include <span>

#include "octet/sampling.h"

namespace octet {

void validate(const SamplingOptions& options);  // throws kInvalidArgument with the value and range

// The token for position `index` of sequence `sequence`; depends on (logits, options, sequence, index) only. Ties go to
// the lowest id. Throws kInternal when the logits hold no finite value.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t sequence, uint64_t index);

}  // namespace octet
