// Writes a model as an FP8 Hugging Face folder in the compressed-tensors layout.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "weights/folder_quantization.h"
#include "weights/weights.h"

namespace octet {

// Largest |x| a text made, by name: "<gemm>" for the x of a linear, "<attention>.k" and "<attention>.v".
using CalibratedAmax = std::map<std::string, float>;

struct QuantizeFolderOptions {
  FolderQuantization scheme = {};
  DType rest = DType::kBF16;  // of embeddings, norms, biases, head
  CalibratedAmax amax = {};   // needed for static activations and for a KV cache
};

// Before anything is written: kUnsupported or kInvalidArgument for what the model or the options do not allow.
void check_quantize_options(const WeightSource& source, const QuantizeFolderOptions& options);

// `folder` is made; tokenizer files of `tokenizer_folder` come along. `on_progress` gets tensors done, of how many.
void quantize_folder(const WeightSource& source, const std::string& tokenizer_folder, const std::string& folder,
                     const QuantizeFolderOptions& options,
                     const std::function<void(int64_t, int64_t)>& on_progress = {});

}  // namespace octet
