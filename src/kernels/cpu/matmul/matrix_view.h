// A GEMM operand as stored: any float type, possibly transposed, possibly FP8 codes with block scales. Packing reads
// runs of consecutive elements of one stored row.
#pragma once

#include <cstdint>

#include "base/shape.h"
#include "kernels/common/scale_index.h"

namespace octet::cpu {

struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;  // as stored, row-major, without gaps
  bool transposed = false;     // the operand is the transpose of the stored matrix
  // Element (r, c) is multiplied by scales[r / scale_rows * scale_row_stride + c / scale_cols * scale_col_stride]; null
  // = 1.
  const float* scales = nullptr;
  int64_t scale_rows = 1, scale_cols = 1, scale_row_stride = 0, scale_col_stride = 0;

  void set_scales(const float* values, const Shape& shape) {
    const ScaleIndex at(rows, cols, shape);
    scales = values, scale_rows = at.row_divisor, scale_cols = at.col_divisor;
    scale_row_stride = at.row_stride, scale_col_stride = at.col_stride;
  }
  float scale(int64_t r, int64_t c) const {
    return scales[r / scale_rows * scale_row_stride + c / scale_cols * scale_col_stride];
  }
};

// Elements [c, c + count) of stored row r as float32: value times scale, rounded once.
void load_run(const MatrixView& view, int64_t r, int64_t c, int64_t count, float* to);
// The same as bf16, by truncation: exact for FP8 codes whose scales are powers of two in range, and for bf16 itself.
void load_run_bf16(const MatrixView& view, int64_t r, int64_t c, int64_t count, uint16_t* to);

}  // namespace octet::cpu
