// Model files of llama2.c (legacy layout, version 0): seven int32 sizes, then float32 tensors without names.
#pragma once

#include <memory>
#include <string>

#include "weights/weights.h"

namespace octet {

// Throws kCorrupt when the sizes are absurd or the file's length disagrees with them.
std::unique_ptr<WeightSource> open_llama2c(const std::string& path);

}  // namespace octet
