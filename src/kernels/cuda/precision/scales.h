// Launchers of what surrounds quantize: dequantize, compute_scale, update_scales, the maxima of amaxes, tensor_stats.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "ir/target_limits.h"
#include "kernels/cuda/precision/quantize.h"

namespace octet::cuda {

// amax [1] -> scale [1], scale_inv [1]; results may be null.
void launch_compute_scale(const ScaleFormula& formula, const float* amax, float* scale, float* scale_inv,
                          cudaStream_t stream);

// Tensors whose scales advance together. history [length] may be new_history; results may be null.
struct ScaleEntry {
  const float *history = nullptr, *amax = nullptr;
  float *new_history = nullptr, *scale = nullptr, *scale_inv = nullptr;
  float max = 448;  // of the tensor's format
};
inline constexpr int kScaleEntries = TargetLimits{}.update_scales;  // of one launch: a table in its parameters
struct ScaleTable {
  ScaleEntry entries[kScaleEntries];
  const float* finite = nullptr;  // 0: the step is skipped; null: it is not
  int32_t count = 0, margin = 0;
  int64_t length = 0;
  bool pow2 = false;
  bool newest_only = false;  // the scale of the new history's first entry alone, else of its maximum
};
void launch_update_scales(const ScaleTable& table, cudaStream_t stream);

// to [1] = the larger of a [1] and b [1], a NaN where one is; `to` may be either, or null.
struct MaximumEntry {
  const float *a = nullptr, *b = nullptr;
  float* to = nullptr;
};
inline constexpr int kMaximumEntries = TargetLimits{}.update_maxima;
struct MaximumTable {
  MaximumEntry entries[kMaximumEntries];
  int32_t count = 0;
};
void launch_maxima(const MaximumTable& table, cudaStream_t stream);

// codes [rows, cols], fewer than 2^31 elements; element (r, c) has scale (r >> row_shift) * row_stride + (c >>
// col_shift) * col_stride.
struct DequantizeJob {
  const uint8_t* codes = nullptr;
  const float* scale_inv = nullptr;
  int64_t rows = 0, cols = 0;
  int32_t row_shift = 0, col_shift = 0;  // 0: each its own; 7: blocks of 128; 31: all one
  int64_t row_stride = 0, col_stride = 0;
};
// to: f32 or bf16.
void launch_dequantize(const DequantizeJob& job, DType format, void* out, DType to, cudaStream_t stream);

// codes i4 [count], of which neighbours lie in one byte, the first in its low half: value(code) * (magnitude_value(
// magnitudes[block]) * scales[block >> group_shift] + offsets[block / row_blocks]), block = index / 64.
struct Nf4Job {
  const uint8_t* codes = nullptr;
  const int8_t* magnitudes = nullptr;
  const float *scales = nullptr, *offsets = nullptr;
  int64_t count = 0;
  uint32_t row_blocks = 1, group_shift = 0;
};
struct Nf4Tables {
  std::array<float, 16> values;
  std::array<float, 256> magnitudes;
};
// to: f32 or bf16; fewer than 2^34 codes, a multiple of 8.
void launch_dequantize_nf4(const Nf4Job& job, const Nf4Tables& tables, void* out, DType to, cudaStream_t stream);

// --- tensor_stats (docs/numerics.md)
struct StatsJob {
  const void* x = nullptr;  // [rows, cols] f32 or bf16
  int64_t rows = 0, cols = 0;
  bool tiles = false;      // blocks of 128x128 instead of 1x128
  ScaleFormula tensor;     // of the one scale
  ScaleFormula block;      // e4m3, powers of two
  float* stats = nullptr;  // [kTensorStatCount], ir/tensor_stats.h
};

int64_t tensor_stats_workspace(int64_t rows, int64_t cols);  // bytes
void launch_tensor_stats(const StatsJob& job, DType type, DType format, void* workspace, cudaStream_t stream);

}  // namespace octet::cuda
