// The int8 engine: panels of int16 pairs along the depth, int32 sums. The layout is that of the vector engine with
// pairs instead of floats; an odd depth is padded with a zero.
#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/matmul/gemm_engine.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

using simd::Ints;

#ifdef __AVX512F__
constexpr int64_t kRows = 12, kVectors = 2;  // 24 of 32 registers hold sums
#else
constexpr int64_t kRows = 6, kVectors = 2;  // 12 of 16
#endif
constexpr int64_t kCols = simd::kLanes * kVectors;

int32_t pair_of(int8_t first, int8_t second) {
  return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint16_t>(first)) |
                              static_cast<uint32_t>(static_cast<uint16_t>(second)) << 16);
}

// to[panel][k / 2][width]; `outer_is_row`: stored rows run along k.
void pack(const MatrixView& view, bool outer_is_row, int64_t outer0, int64_t count, int64_t k0, int64_t ks,
          int64_t width, int32_t* to) {
  check(view.dtype == DType::kI8 && view.scales == nullptr, ErrorCode::kInternal,
        "the int8 product packs {} codes with their scales outside", dtype_name(view.dtype));
  const auto* codes = static_cast<const int8_t*>(view.data);
  const int64_t along_outer = outer_is_row ? view.cols : 1, along_k = outer_is_row ? 1 : view.cols;
  for (int64_t panel = 0; panel < count; panel += width, to += (ks + 1) / 2 * width) {
    const int64_t filled = std::min(width, count - panel);
    if (filled < width) std::fill(to, to + (ks + 1) / 2 * width, 0);
    const int8_t* from = codes + (outer0 + panel) * along_outer + k0 * along_k;
    for (int64_t k = 0; k < ks; k += 2) {
      const int8_t* first = from + k * along_k;
      int32_t* pairs = to + k / 2 * width;
      for (int64_t i = 0; i < filled; ++i, first += along_outer)
        pairs[i] = pair_of(first[0], k + 1 < ks ? first[along_k] : int8_t{0});
    }
  }
}

void pack_a(const MatrixView& a, int64_t m0, int64_t rows, int64_t k0, int64_t ks, void* to) {
  pack(a, !a.transposed, m0, rows, k0, ks, kRows, static_cast<int32_t*>(to));
}

void pack_b(const MatrixView& b, int64_t n0, int64_t cols, int64_t k0, int64_t ks, void* to) {
  pack(b, b.transposed, n0, cols, k0, ks, kCols, static_cast<int32_t*>(to));
}

Ints load(const void* from) {
  Ints v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// sums [kRows, kCols] of one panel pair.
void multiply_panels(const int32_t* a, const int32_t* b, int64_t pairs, float* tile, int64_t ld, bool accumulate) {
  Ints sums[kRows][kVectors] = {};
  for (int64_t k = 0; k < pairs; ++k, a += kRows, b += kCols) {
    Ints right[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) right[v] = load(b + v * simd::kLanes);
#pragma GCC unroll 12
    for (int64_t i = 0; i < kRows; ++i) {
      const Ints left = a[i] - Ints{};
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; ++v) sums[i][v] = simd::dot_pairs(left, right[v], sums[i][v]);
    }
  }
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t v = 0; v < kVectors; ++v) {
      float* to = tile + i * ld + v * simd::kLanes;
      const Ints sum = accumulate ? load(to) + sums[i][v] : sums[i][v];
      std::memcpy(to, &sum, sizeof sum);
    }
  }
}

void multiply(const void* a, int64_t rows, const void* b, int64_t cols, int64_t ks, float* tile, int64_t ld,
              bool accumulate) {
  const int64_t pairs = (ks + 1) / 2;
  for (int64_t j = 0; j < cols; j += kCols) {
    for (int64_t i = 0; i < rows; i += kRows) {
      multiply_panels(static_cast<const int32_t*>(a) + i * pairs, static_cast<const int32_t*>(b) + j * pairs, pairs,
                      tile + i * ld + j, ld, accumulate);
    }
  }
}

}  // namespace

const GemmEngine& int8_engine() {
  static const GemmEngine engine{.name = "int8",
                                 .mr = kRows,
                                 .nr = kCols,
                                 .kr = 2,
                                 .element_bytes = 2,
                                 .integer_sums = true,
                                 .pack_a = pack_a,
                                 .pack_b = pack_b,
                                 .multiply = multiply};
  return engine;
}

}  // namespace octet::cpu
