// Which scale_inv element belongs to element (r, c) of a codes matrix. The scale's shape tells the scaling: [1] per
// tensor, [R] per row, [ceil(C/128), R] 1x128 blocks, [ceil(R/128), ceil(C/128)] 128x128 blocks (the last two coincide
// for one scale only).
#pragma once

#include "ir/scale_layout.h"

namespace octet {

struct ScaleIndex {
  int64_t row_divisor = 1, col_divisor = 1, row_stride = 1, col_stride = 1;

  ScaleIndex(const Shape& codes, const Shape& scale) : ScaleIndex(codes.rows(), codes.cols(), scale) {}
  ScaleIndex(int64_t code_rows, int64_t code_cols, const Shape& scale) {
    const int64_t huge = code_rows * code_cols + 1;
    if (scale.elements() == 1) {
      row_divisor = col_divisor = huge;
    } else if (scale.rank() == 1) {
      col_divisor = huge;
    } else if (is_1x128(code_rows, code_cols, scale)) {
      col_divisor = scale[0] == 1 ? huge : kScaleBlock, col_stride = code_rows;
    } else {
      row_divisor = kScaleBlock, row_stride = scale[1];
      col_divisor = scale[1] == 1 ? huge : kScaleBlock;
    }
  }
  static bool is_1x128(int64_t code_rows, int64_t code_cols, const Shape& scale) {
    return scale.rank() == 2 && scale[0] == (code_cols + kScaleBlock - 1) / kScaleBlock && scale[1] == code_rows;
  }
  int64_t operator()(int64_t r, int64_t c) const { return r / row_divisor * row_stride + c / col_divisor * col_stride; }
};

}  // namespace octet
