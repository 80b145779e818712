// Which scale_inv element belongs to element (r, c) of a codes matrix. The scale's shape tells the scaling: [1] per
// tensor, [R] per row, [ceil(C/G), R] groups of G = 32, 64 or 128 of a row, [ceil(R/128), ceil(C/128)] 128x128 blocks.
// No shape is that of two of them, but of ones with the same single group a row.
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
    } else if (const int64_t group = group_of(code_rows, code_cols, scale)) {
      col_divisor = scale[0] == 1 ? huge : group, col_stride = code_rows;
    } else {
      row_divisor = kScaleBlock, row_stride = scale[1];
      col_divisor = scale[1] == 1 ? huge : kScaleBlock;
    }
  }
  // G of groups along the rows, or 0.
  static int64_t group_of(int64_t code_rows, int64_t code_cols, const Shape& scale) {
    for (const ScaleLayout layout : {ScaleLayout::kRow128, ScaleLayout::kRow64, ScaleLayout::kRow32})
      if (scale == scale_shape(layout, code_rows, code_cols)) return scale_group(layout);
    return 0;
  }
  int64_t operator()(int64_t r, int64_t c) const { return r / row_divisor * row_stride + c / col_divisor * col_stride; }
};

}  // namespace octet
