// Plain Hugging Face folders of any source of weights: dequantized, merged, of another type.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weights/weights.h"

namespace octet {

// Writes config.json, the tensors as `dtype` (f32, bf16 or f16; norms and biases too), and the tokenizer files of
// `tokenizer_folder` ("": none). The folder's tensors appear when all are written; one tensor at a time is in memory.
// `on_progress` gets tensors done, of how many.
void export_folder(const WeightSource& source, const std::string& tokenizer_folder, const std::string& folder,
                   DType dtype, const std::function<void(int64_t, int64_t)>& on_progress = {});

// Writes a folder: `make` gives the bytes of each tensor of `types` when its turn comes; then config.json and tokenizer
// files. A folder that was not there goes again where it fails.
using MakeTensor = std::function<std::vector<std::byte>(const std::string& name)>;
void write_model_folder(const std::string& folder, const std::vector<NamedType>& types, const MakeTensor& make,
                        const std::string& config, const std::string& tokenizer_folder,
                        const std::function<void(int64_t, int64_t)>& on_progress);

// Of a tensor of the source's folder the values of all its parameters, in the order of its rows [N, K].
std::vector<float> tensor_values(const WeightSource& source, const CheckpointTensor& tensor, const ParamShapes& shapes);

}  // namespace octet
