// Which scale_inv element belongs to element (r, c) of a codes matrix. The scale's shape tells the scaling: [1] per
// tensor, [R] per row, [R, ceil(C/128)] 1x128 blocks, [ceil(R/128), ceil(C/128)] 128x128 blocks (shapes that coincide
// mean the same thing).
#pragma once

#include "base/shape.h"

namespace octet::cpu {

inline constexpr int64_t kScaleBlock = 128;

struct ScaleIndex {
  int64_t row_divisor = 1, col_divisor = 1, cols = 0;

  ScaleIndex(const Shape& codes, const Shape& scale) : ScaleIndex(codes.rows(), codes.cols(), scale) {}
  ScaleIndex(int64_t code_rows, int64_t code_cols, const Shape& scale) {
    const int64_t huge = code_rows * code_cols + 1;
    if (scale.elements() == 1) {
      row_divisor = col_divisor = huge, cols = 1;
    } else if (scale.rank() == 1) {
      row_divisor = 1, col_divisor = huge, cols = 1;
    } else {
      row_divisor = scale[0] == code_rows ? 1 : kScaleBlock;
      col_divisor = scale[1] == 1 ? huge : kScaleBlock, cols = scale[1];
    }
  }
  int64_t operator()(int64_t r, int64_t c) const { return r / row_divisor * cols + c / col_divisor; }
};

}  // namespace octet::cpu
