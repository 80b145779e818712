// Epilogue of our own GEMMs: applies scales and addend to the float32 sums and rounds once.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace octet::cpu {

// out [M, N] = product * factor * row_scale[m] * col_scale[n] + c, rounded once.
struct GemmOutput {
  void* data = nullptr;
  DType dtype = DType::kF32;
  float factor = 1;
  const float* row_scale = nullptr;
  const float* col_scale = nullptr;
  const void* c = nullptr;  // [M, N], or [N] when broadcast; may alias `data`
  DType c_dtype = DType::kF32;
  bool c_broadcast = false;
};

// Writes rows [m0, m0 + rows) and columns [n0, n0 + cols) of a result `width` columns wide from sums [rows, ld].
using StoreTile = void (*)(const GemmOutput& out, const float* sums, int64_t ld, int64_t m0, int64_t rows, int64_t n0,
                           int64_t cols, int64_t width);
StoreTile choose_store(const GemmOutput& out);

}  // namespace octet::cpu
