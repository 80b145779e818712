// Quantizing a weight matrix on the host, with the codes and scales op quantize gives (docs/numerics.md), and back.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace octet {

// How the scales of one quantized tensor are laid out.
enum class ScaleLayout : uint8_t {
  kTensor,  // one scale
  kRow,     // one a row: activations that are served, so that no token depends on another; weights' output channels
  kRow128,  // 1x128 blocks along the contraction: activations and gradients
  kTile128  // 128x128 blocks: weights
};

// As attrs of quantize and scaled_matmul spell it; parse throws kInternal for anything else.
const char* scale_layout_name(ScaleLayout layout);
ScaleLayout parse_scale_layout(const std::string& name);

// Scales of a matrix [rows, cols].
int64_t scale_count(ScaleLayout layout, int64_t rows, int64_t cols);

struct QuantizeRule {
  ScaleLayout layout = ScaleLayout::kRow;
  DType format = DType::kE4M3;
  int64_t margin = 0;
  bool power_of_two = false;
};

struct QuantizedMatrix {
  std::vector<std::byte> codes;  // [rows, cols]
  std::vector<float> scale_inv;  // a code's value is code * scale_inv; scale_count() of them, row by row
};
QuantizedMatrix quantize_matrix(std::span<const float> values, int64_t rows, int64_t cols, const QuantizeRule& rule);
// The same of values of another type; read twice and never copied whole.
QuantizedMatrix quantize_matrix(DType type, std::span<const std::byte> values, int64_t rows, int64_t cols,
                                const QuantizeRule& rule);

std::vector<float> dequantize_matrix(std::span<const std::byte> codes, std::span<const float> scale_inv, int64_t rows,
                                     int64_t cols, ScaleLayout layout, DType format = DType::kE4M3);

}  // namespace octet
