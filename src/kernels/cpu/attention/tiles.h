// Small GEMMs and the packing of their operands, the building blocks of the attention kernels.
//
// All data is float32 in scratch that fits the L2 cache; tile rows are padded with zeros to whole vectors.
#pragma once

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace octet::cpu::tiles {

using simd::Floats;
using simd::kLanes;

inline int64_t round_up_lanes(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

#ifdef __AVX512F__
inline constexpr int kRows = 8;  // 16 accumulators, 2 operand vectors
#else
inline constexpr int kRows = 4;
#endif

// c[kR x kV vectors] (+)= sum over depth of a(row, k) * b[k]. a is read element by element, so either of its dims may
// be contiguous.
template <int kR, int kV, bool kDepthContiguous>
OCTET_SIMD void product_block(int64_t depth, const float* a, int64_t a_row, int64_t a_depth, const float* b,
                              int64_t b_row, float* c, int64_t c_row, bool accumulate) {
  Floats sum[kR][kV];
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kV; ++v) {
      sum[r][v] = accumulate ? simd::load(c + r * c_row + v * kLanes, simd::Full{}) : Floats{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Floats operand[kV];
    for (int v = 0; v < kV; ++v) operand[v] = simd::load(b + k * b_row + v * kLanes, simd::Full{});
    for (int r = 0; r < kR; ++r) {
      const Floats element = simd::broadcast(kDepthContiguous ? a[r * a_row + k] : a[r + k * a_depth]);
      for (int v = 0; v < kV; ++v) sum[r][v] = simd::fma(element, operand[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kV; ++v) simd::store(c + r * c_row + v * kLanes, sum[r][v], simd::Full{});
  }
}

struct Matrix {
  const float* data;
  int64_t row, col;  // strides
};

// c[rows x cols] = or += a[rows x depth] b[depth x cols]; cols counts whole vectors' lanes.
inline void product(int64_t rows, int64_t cols, int64_t depth, Matrix a, const float* b, int64_t b_row, float* c,
                    int64_t c_row, bool accumulate) {
  const auto bands = [&]<bool kDepthContiguous>() {
    int64_t r = 0;
    const auto band = [&]<int kR>() {
      const float* first = a.data + r * a.row;
      int64_t v = 0;
      for (; v + 2 * kLanes <= cols; v += 2 * kLanes) {
        product_block<kR, 2, kDepthContiguous>(depth, first, a.row, a.col, b + v, b_row, c + r * c_row + v, c_row,
                                               accumulate);
      }
      if (v < cols) {
        product_block<kR, 1, kDepthContiguous>(depth, first, a.row, a.col, b + v, b_row, c + r * c_row + v, c_row,
                                               accumulate);
      }
      r += kR;
    };
    while (r + kRows <= rows) band.template operator()<kRows>();
    if (kRows > 4 && r + 4 <= rows) band.template operator()<4>();
    if (r + 2 <= rows) band.template operator()<2>();
    if (r < rows) band.template operator()<1>();
  };
  a.col == 1 ? bands.template operator()<true>() : bands.template operator()<false>();
}

// Rows of a tensor: [count][dim], `row` elements apart.
template <typename T>
struct Rows {
  const T* data;
  int64_t row, count, dim;
};

// to[col][row] = from[row][col], rows padded with zeros to whole vectors.
template <typename T>
void pack_transposed(const Rows<T>& from, float* to, int64_t to_row) {
  for (int64_t r0 = 0; r0 < from.count; r0 += kLanes) {
    for (int64_t c0 = 0; c0 < from.dim; c0 += kLanes) {
      Floats block[kLanes];
      const int64_t width = std::min<int64_t>(kLanes, from.dim - c0);
      for (int r = 0; r < kLanes; ++r) {
        const T* source = from.data + (r0 + r) * from.row + c0;
        block[r] = r0 + r >= from.count ? Floats{}
                   : width == kLanes    ? simd::load(source, simd::Full{})
                                        : simd::load(source, simd::Part{width});
      }
      simd::transpose(block);
      for (int64_t c = 0; c < width; ++c) simd::store(to + (c0 + c) * to_row + r0, block[c], simd::Full{});
    }
  }
}

// A float32 view of rows: the tensor itself if possible, else a packed copy with padded rows.
template <typename T>
Matrix rows_of(const Rows<T>& from, float* scratch) {
  if constexpr (std::is_same_v<T, float>) {
    if (from.dim % kLanes == 0) return {from.data, from.row, 1};
  }
  const int64_t padded = round_up_lanes(from.dim);
  for (int64_t r = 0; r < from.count; ++r) {
    simd::for_lanes(from.dim, [&](int64_t i, auto lanes) {
      simd::store(scratch + r * padded + i, simd::load(from.data + r * from.row + i, lanes), simd::Full{});
    });
  }
  return {scratch, padded, 1};
}

}  // namespace octet::cpu::tiles
