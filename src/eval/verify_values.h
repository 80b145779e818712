// What the verifications of decoders and encoders share.
#pragma once

#include "eval/verify.h"
#include "io/safetensors.h"

namespace octet {

// A tensor of token ids. Throws kCorrupt for one outside the vocabulary.
std::vector<int32_t> id_tensor(const TensorSource& source, const std::string& name, int64_t vocab_size);

// The errors of as many values as are wanted.
VerifyReport compare_values(std::span<const float> values, std::span<const float> wanted);

}  // namespace octet
