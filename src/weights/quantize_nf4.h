// Weights in NF4: 4 bits that index quantiles of the normal distribution, a magnitude for each block of 64 consecutive
// values of a matrix [out, in], these magnitudes in 8 bits themselves (double quantization): 4.13 bits a weight.
// Source: Dettmers et al., QLoRA (arXiv 2305.14314), sections 3 and 4. Folders are those of bitsandbytes; nf4_folder.h
// reads them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weights/weights.h"

namespace octet {

struct Nf4Matrix {
  std::vector<uint8_t> codes;  // two a byte, the first in the upper half
  std::vector<float> magnitudes;
};
Nf4Matrix quantize_nf4(std::span<const float> values);

// Magnitude b is table[codes[b]] * scales[b / 256] + offset.
struct NestedMagnitudes {
  std::vector<float> table, scales;
  std::vector<uint8_t> codes;
  float offset = 0;
};
NestedMagnitudes quantize_magnitudes(std::span<const float> magnitudes);

// Writes a model as a folder that transformers and bitsandbytes load: linears stored [out, in], but for those of
// experts, in NF4; the rest as `rest`. Arguments as of quantize_folder.
void quantize_to_nf4(const WeightSource& source, const std::string& tokenizer_folder, const std::string& folder,
                     DType rest = DType::kBF16, const std::function<void(int64_t, int64_t)>& on_progress = {});

}  // namespace octet
