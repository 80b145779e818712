// The quantization_config of a Hugging Face folder: FP8 weights as compressed-tensors ("float-quantized") and the
// DeepSeek-style method "fp8" describe them. What a tensor holds is told by the tensors; this says how to run them.
#pragma once

#include <optional>
#include <string>

#include "precision/quantized_matrix.h"

namespace octet {

enum class ActivationScales : uint8_t {
  kToken,   // one a token, as it comes
  kStatic,  // one a linear, kept in the folder
  kBlock,   // 1x128, as they come
};

struct FolderQuantization {
  ScaleLayout weights = ScaleLayout::kRow;  // kTensor, kRow or kTile128
  ActivationScales activations = ActivationScales::kToken;
  bool kv_cache = false;  // FP8, with scales of keys and values in every layer
};

// Nothing where config.json has no quantization_config. Throws kUnsupported naming the field whose value Octet cannot
// run, kCorrupt for one of the wrong type.
std::optional<FolderQuantization> parse_quantization(const std::string& json_text, const std::string& where);

// config.json with a quantization_config in the compressed-tensors layout added.
std::string with_quantization(const std::string& json_text, const FolderQuantization& quantization);

}  // namespace octet
