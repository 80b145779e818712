// Launchers of what surrounds quantize: dequantize, compute_scale, update_scales.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

// The scale formula's constants (docs/numerics.md).
struct ScaleAttrs {
  float max = 448;
  int margin = 0;
  bool pow2 = false;
};

// amax [1] -> scale [1], scale_inv [1]; results may be null.
void launch_compute_scale(const ScaleAttrs& attrs, const float* amax, float* scale, float* scale_inv,
                          cudaStream_t stream);

// history [length] may be new_history. newest_only: the scale of amax alone, else of the whole new history's maximum.
void launch_update_scales(const ScaleAttrs& attrs, bool newest_only, const float* history, const float* amax,
                          int64_t length, float* new_history, float* scale, float* scale_inv, cudaStream_t stream);

// codes [rows, cols], fewer than 2^31 elements; element (r, c) has scale (r >> row_shift) * scale_cols + (c >>
// col_shift).
struct DequantizeJob {
  const uint8_t* codes = nullptr;
  const float* scale_inv = nullptr;
  int64_t rows = 0, cols = 0;
  int32_t row_shift = 0, col_shift = 0;  // 0: each its own; 7: blocks of 128; 31: all one
  int64_t scale_cols = 0;
};
// to: f32 or bf16.
void launch_dequantize(const DequantizeJob& job, DType format, void* out, DType to, cudaStream_t stream);

}  // namespace octet::cuda
