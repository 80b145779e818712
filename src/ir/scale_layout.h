// How the scales of one tensor of codes are laid out: which elements share a scale, and in what shape the scales are.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/shape.h"

namespace octet {

inline constexpr int64_t kScaleBlock = 128;

enum class ScaleLayout : uint8_t {
  kTensor,   // "tensor": one scale, [1]
  kRow,      // "row": [R]. Activations that are served, so that no token depends on another; weights' output channels
  kRow128,   // "1x128": [ceil(C/128), R], groups along the contraction: activations and gradients; weights in integers
  kTile128,  // "128x128": [ceil(R/128), ceil(C/128)]: weights
  kRow32,    // "1x32": [ceil(C/32), R]: weights in integers, as kRow64 and kRow128
  kRow64     // "1x64"
};

// As attributes spell it; parse throws kInternal for anything else.
const char* scale_layout_name(ScaleLayout layout);
ScaleLayout parse_scale_layout(std::string_view name);

// Neighbours along a row that share a scale in 1x32, 1x64 and 1x128; 0 in the other layouts.
int64_t scale_group(ScaleLayout layout);
Shape scale_shape(ScaleLayout layout, int64_t rows, int64_t cols);  // of the scales of codes [rows, cols]

}  // namespace octet
