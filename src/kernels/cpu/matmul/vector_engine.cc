// The portable engine: float32 panels, gcc vector types, an outer-product kernel whose accumulators fill the registers.
#include <algorithm>

#include "kernels/cpu/matmul/gemm_engine.h"

namespace octet::cpu {
namespace {

#ifdef __AVX512F__
constexpr int64_t kLanes = 16, kRows = 12, kVectors = 2;  // 24 of 32 registers hold sums
#else
constexpr int64_t kLanes = 8, kRows = 6, kVectors = 2;  // 12 of 16
#endif
constexpr int64_t kCols = kLanes * kVectors;
constexpr int64_t kRun = 512;
using Vector = float __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

// Panels of `width` along the operand's outer dimension: to[panel][k][width]. `outer_is_row`: stored rows are along k.
void pack(const MatrixView& view, bool outer_is_row, int64_t outer0, int64_t count, int64_t k0, int64_t ks,
          int64_t width, float* to) {
  for (int64_t panel = 0; panel < count; panel += width, to += ks * width) {
    const int64_t filled = std::min(width, count - panel);
    if (filled < width) std::fill(to, to + ks * width, 0.0f);
    if (!outer_is_row) {
      for (int64_t k = 0; k < ks; ++k) load_run(view, k0 + k, outer0 + panel, filled, to + k * width);
      continue;
    }
    float run[kRun];
    for (int64_t i = 0; i < filled; ++i) {
      for (int64_t k = 0; k < ks; k += kRun) {
        const int64_t length = std::min(kRun, ks - k);
        load_run(view, outer0 + panel + i, k0 + k, length, run);
        for (int64_t j = 0; j < length; ++j) to[(k + j) * width + i] = run[j];
      }
    }
  }
}

void pack_a(const MatrixView& a, int64_t m0, int64_t rows, int64_t k0, int64_t ks, void* to) {
  pack(a, !a.transposed, m0, rows, k0, ks, kRows, static_cast<float*>(to));
}

void pack_b(const MatrixView& b, int64_t n0, int64_t cols, int64_t k0, int64_t ks, void* to) {
  pack(b, b.transposed, n0, cols, k0, ks, kCols, static_cast<float*>(to));
}

// sums [kRows, kCols] of one panel pair.
void multiply_panels(const float* a, const float* b, int64_t ks, float* tile, int64_t ld, bool accumulate) {
  Vector sums[kRows][kVectors] = {};
  for (int64_t k = 0; k < ks; ++k, a += kRows, b += kCols) {
    Vector right[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) right[v] = *reinterpret_cast<const Vector*>(b + v * kLanes);
#pragma GCC unroll 12
    for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; ++v) sums[i][v] += a[i] * right[v];
    }
  }
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t v = 0; v < kVectors; ++v) {
      auto* to = reinterpret_cast<Vector*>(tile + i * ld + v * kLanes);
      *to = accumulate ? *to + sums[i][v] : sums[i][v];
    }
  }
}

void multiply(const void* a, int64_t rows, const void* b, int64_t cols, int64_t ks, float* tile, int64_t ld,
              bool accumulate) {
  for (int64_t j = 0; j < cols; j += kCols) {
    for (int64_t i = 0; i < rows; i += kRows) {
      multiply_panels(static_cast<const float*>(a) + i * ks, static_cast<const float*>(b) + j * ks, ks,
                      tile + i * ld + j, ld, accumulate);
    }
  }
}

}  // namespace

const GemmEngine& vector_engine() {
  static const GemmEngine engine{.name = "vector",
                                 .mr = kRows,
                                 .nr = kCols,
                                 .kr = 1,
                                 .element_bytes = 4,
                                 .integer_sums = false,
                                 .pack_a = pack_a,
                                 .pack_b = pack_b,
                                 .multiply = multiply};
  return engine;
}

}  // namespace octet::cpu
