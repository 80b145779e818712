// The layouts of quantization scales: which elements of a matrix of codes share one scale.
#pragma once

#include <string>

#include "ir/ops/common.h"

namespace octet::ops {

inline constexpr int64_t kScaleBlock = 128;

enum class Scaling : uint8_t {
  kTensor,   // "tensor": one scale, [1]
  kRow,      // "row": [R]
  k1x128,    // "1x128": [ceil(C/128), R]: the scales of one group of columns are neighbours
  k128x128,  // "128x128": [ceil(R/128), ceil(C/128)]
};

Scaling scaling_attr(const Node& node, std::string_view key);  // absent = tensor; throws on other names
TensorType scale_type(const Shape& codes, Scaling scaling);    // of the scale_inv of codes [R, C]

}  // namespace octet::ops
