// Quantizes one tile, read once or twice from cache, to row codes, codes of the transpose, scales and amax. The
// arithmetic is the reference's bit for bit: float32 scale, float32 product, one rounding to FP8. quantize_kernels.cc
// schedules tiles.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/shape.h"
#include "kernels/common/scale_index.h"
#include "kernels/cpu/precision/scale_formula.h"

namespace octet::cpu {

template <typename T>
uint32_t amax_run(const T* x, int64_t count) {
  uint32_t amax = 0;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, magnitude_bits(x[i]));
  return amax;
}

template <typename T>
void amax_columns(const T* x, int64_t count, uint32_t* amax) {
  for (int64_t i = 0; i < count; ++i) amax[i] = std::max(amax[i], magnitude_bits(x[i]));
}

template <typename Code, typename T>
void encode_run(const T* __restrict x, int64_t count, float scale, Code* __restrict codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = codec::encode<Code>(codec::decode(x[i]) * scale);
}

template <typename Code, typename T>
void encode_columns(const T* __restrict x, int64_t count, const float* __restrict scales, Code* __restrict codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = codec::encode<Code>(codec::decode(x[i]) * scales[i]);
}

inline void transpose_16x16(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride) {
  __m128i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_stride));
  // Four rounds of interleaving row i with row i + 8 are a full transpose.
  auto interleave = [](const __m128i* in, __m128i* out) {
    for (int i = 0; i < 8; ++i) {
      out[2 * i] = _mm_unpacklo_epi8(in[i], in[i + 8]);
      out[2 * i + 1] = _mm_unpackhi_epi8(in[i], in[i + 8]);
    }
  };
  interleave(a, b);
  interleave(b, a);
  interleave(a, b);
  interleave(b, a);
  for (int i = 0; i < 16; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * to_stride), a[i]);
}

// to [cols, to_stride] = the transpose of tile [rows, kScaleBlock].
inline void transpose_tile(const uint8_t* tile, int64_t rows, int64_t cols, uint8_t* to, int64_t to_stride) {
  int64_t r = 0;
  for (; r + 16 <= rows; r += 16) {
    int64_t c = 0;
    for (; c + 16 <= cols; c += 16)
      transpose_16x16(tile + r * kScaleBlock + c, kScaleBlock, to + c * to_stride + r, to_stride);
    for (; c < cols; ++c) {
      for (int64_t i = r; i < r + 16; ++i) to[c * to_stride + i] = tile[i * kScaleBlock + c];
    }
  }
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) to[c * to_stride + r] = tile[r * kScaleBlock + c];
  }
}

inline ScaleLayout layout_of(const Shape& codes, const Shape& scale, bool given) {
  if (given) return ScaleLayout::kTensor;
  if (scale.rank() == 1) return ScaleLayout::kRow;
  return ScaleIndex::is_1x128(codes.rows(), codes.cols(), scale) ? ScaleLayout::kRow128 : ScaleLayout::kTile128;
}

// Results that may be absent are null.
template <typename Code>
struct QuantizeJob {
  const void* x;
  int64_t rows, cols;
  ScaleLayout layout;
  float scale;  // kTensor
  Code *codes, *codes_t;
  float *scale_inv, *scale_inv_t;  // not of kTensor
  ScaleFormula formula;
  float *row_scales, *col_scales;  // kRow, computed before: [rows], [cols]
  bool wants_amax;
};

// One tile at (r0, c0), its elements at x. Returns its amax bits if requested or computed anyway.
template <typename Code, typename T>
uint32_t quantize_tile(const QuantizeJob<Code>& job, const T* x, int64_t r0, int64_t c0) {
  const int64_t rows = std::min(kScaleBlock, job.rows - r0), cols = std::min(kScaleBlock, job.cols - c0);
  const bool per_row = job.layout == ScaleLayout::kRow || job.layout == ScaleLayout::kRow128;
  alignas(64) Code tile[kScaleBlock * kScaleBlock];
  alignas(64) float row_scale[kScaleBlock], col_scale[kScaleBlock];
  uint32_t amax = 0;
  if (job.layout == ScaleLayout::kRow128) {
    alignas(64) uint32_t col_amax[kScaleBlock] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const uint32_t row_amax = amax_run(x + r * job.cols, cols);
      if (job.codes_t != nullptr || job.scale_inv_t != nullptr) amax_columns(x + r * job.cols, cols, col_amax);
      amax = std::max(amax, row_amax);
      row_scale[r] = job.formula(row_amax);
      if (job.scale_inv != nullptr) job.scale_inv[c0 / kScaleBlock * job.rows + r0 + r] = 1.0f / row_scale[r];
    }
    for (int64_t c = 0; c < cols; ++c) {
      col_scale[c] = job.formula(col_amax[c]);
      if (job.scale_inv_t != nullptr) job.scale_inv_t[r0 / kScaleBlock * job.cols + c0 + c] = 1.0f / col_scale[c];
    }
  } else if (job.layout == ScaleLayout::kRow) {
    std::copy_n(job.row_scales + r0, rows, row_scale);
    std::copy_n(job.col_scales + c0, cols, col_scale);
  } else if (job.layout == ScaleLayout::kTile128 || job.wants_amax) {
    for (int64_t r = 0; r < rows; ++r) amax = std::max(amax, amax_run(x + r * job.cols, cols));
  }
  float scale = job.scale;
  if (job.layout == ScaleLayout::kTile128) {
    scale = job.formula(amax);
    const int64_t row_tile = r0 / kScaleBlock, col_tile = c0 / kScaleBlock;
    const int64_t row_tiles = (job.rows + kScaleBlock - 1) / kScaleBlock,
                  col_tiles = (job.cols + kScaleBlock - 1) / kScaleBlock;
    if (job.scale_inv != nullptr) job.scale_inv[row_tile * col_tiles + col_tile] = 1.0f / scale;
    if (job.scale_inv_t != nullptr) job.scale_inv_t[col_tile * row_tiles + row_tile] = 1.0f / scale;
  }
  if (job.codes != nullptr) {
    for (int64_t r = 0; r < rows; ++r) {
      encode_run(x + r * job.cols, cols, per_row ? row_scale[r] : scale, job.codes + (r0 + r) * job.cols + c0);
    }
  }
  if (job.codes_t != nullptr) {
    for (int64_t r = 0; r < rows; ++r) {
      Code* to = tile + r * kScaleBlock;
      if (per_row) {
        encode_columns(x + r * job.cols, cols, col_scale, to);
      } else if (job.codes != nullptr) {
        std::memcpy(to, job.codes + (r0 + r) * job.cols + c0, static_cast<size_t>(cols));
      } else {
        encode_run(x + r * job.cols, cols, scale, to);
      }
    }
    transpose_tile(&tile[0].bits, rows, cols, &job.codes_t[c0 * job.rows + r0].bits, job.rows);
  }
  return amax;
}

}  // namespace octet::cpu
