// The engines of portable vectors: an outer-product kernel whose accumulators fill the registers. The panels of the
// vector engine hold float32; those of the int8 engine int16 pairs along the depth, for int32 sums.
#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/matmul/gemm.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

#ifdef __AVX512F__
constexpr int64_t kRows = 12, kVectors = 2;  // 24 of 32 registers hold sums
#else
constexpr int64_t kRows = 6, kVectors = 2;  // 12 of 16
#endif
constexpr int64_t kCols = simd::kLanes * kVectors;
constexpr int64_t kRun = 512;

struct FloatPanels {
  using Element = float;
  using Sums = simd::Floats;
  static constexpr int64_t kDepth = 1;  // of an element
  static Sums add(Sums sums, Element a, Sums b) { return sums + a * b; }

  // Outer [outer, outer + filled) of a panel; `outer_is_row`: stored rows are along k.
  static void pack(const MatrixView& view, bool outer_is_row, int64_t outer, int64_t filled, int64_t k0, int64_t ks,
                   int64_t width, Element* to) {
    if (!outer_is_row) {
      for (int64_t k = 0; k < ks; ++k) load_run(view, k0 + k, outer, filled, to + k * width);
      return;
    }
    float run[kRun];
    for (int64_t i = 0; i < filled; ++i) {
      for (int64_t k = 0; k < ks; k += kRun) {
        const int64_t length = std::min(kRun, ks - k);
        load_run(view, outer + i, k0 + k, length, run);
        for (int64_t j = 0; j < length; ++j) to[(k + j) * width + i] = run[j];
      }
    }
  }
};

struct PairPanels {
  using Element = int32_t;
  using Sums = simd::Ints;
  static constexpr int64_t kDepth = 2;
  static Sums add(Sums sums, Element a, Sums b) { return simd::dot_pairs(a - Sums{}, b, sums); }

  static void pack(const MatrixView& view, bool outer_is_row, int64_t outer, int64_t filled, int64_t k0, int64_t ks,
                   int64_t width, Element* to) {
    check(view.dtype == DType::kI8 && view.scales == nullptr, ErrorCode::kInternal,
          "the int8 product packs {} codes with their scales outside", dtype_name(view.dtype));
    const int64_t along_outer = outer_is_row ? view.cols : 1, along_k = outer_is_row ? 1 : view.cols;
    const int8_t* codes = static_cast<const int8_t*>(view.data) + outer * along_outer + k0 * along_k;
    for (int64_t k = 0; k < ks; k += 2) {
      const int8_t* first = codes + k * along_k;
      for (int64_t i = 0; i < filled; ++i, first += along_outer) {
        const auto low = static_cast<uint16_t>(first[0]), high = static_cast<uint16_t>(k + 1 < ks ? first[along_k] : 0);
        to[k / 2 * width + i] = static_cast<int32_t>(uint32_t{low} | uint32_t{high} << 16);
      }
    }
  }
};

// Panels of `width` along the operand's outer dimension, zero-padded: to[panel][k / kDepth][width].
template <typename Panels>
void pack(const MatrixView& view, bool outer_is_row, int64_t outer0, int64_t count, int64_t k0, int64_t ks,
          int64_t width, void* packed) {
  auto* to = static_cast<typename Panels::Element*>(packed);
  const int64_t size = (ks + Panels::kDepth - 1) / Panels::kDepth * width;
  for (int64_t panel = 0; panel < count; panel += width, to += size) {
    const int64_t filled = std::min(width, count - panel);
    if (filled < width) std::fill_n(to, size, 0);
    Panels::pack(view, outer_is_row, outer0 + panel, filled, k0, ks, width, to);
  }
}

template <typename Panels>
void pack_a(const MatrixView& a, int64_t m0, int64_t rows, int64_t k0, int64_t ks, void* to) {
  pack<Panels>(a, !a.transposed, m0, rows, k0, ks, kRows, to);
}

template <typename Panels>
void pack_b(const MatrixView& b, int64_t n0, int64_t cols, int64_t k0, int64_t ks, void* to) {
  pack<Panels>(b, b.transposed, n0, cols, k0, ks, kCols, to);
}

// sums [kRows, kCols] of one panel pair.
template <typename Panels>
void multiply_panels(const typename Panels::Element* a, const typename Panels::Element* b, int64_t depth, float* tile,
                     int64_t ld, bool accumulate) {
  using Sums = typename Panels::Sums;
  Sums sums[kRows][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k, a += kRows, b += kCols) {
    Sums right[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) std::memcpy(&right[v], b + v * simd::kLanes, sizeof right[v]);
#pragma GCC unroll 12
    for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; ++v) sums[i][v] = Panels::add(sums[i][v], a[i], right[v]);
    }
  }
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t v = 0; v < kVectors; ++v) {
      float* to = tile + i * ld + v * simd::kLanes;
      Sums before{};
      if (accumulate) std::memcpy(&before, to, sizeof before);
      const Sums sum = accumulate ? before + sums[i][v] : sums[i][v];
      std::memcpy(to, &sum, sizeof sum);
    }
  }
}

template <typename Panels>
void multiply(const void* a, int64_t, int64_t rows, const void* b, int64_t cols, int64_t ks, float* tile, int64_t ld,
              bool accumulate) {
  using Element = typename Panels::Element;
  const int64_t depth = (ks + Panels::kDepth - 1) / Panels::kDepth;
  for (int64_t j = 0; j < cols; j += kCols) {
    for (int64_t i = 0; i < rows; i += kRows) {
      multiply_panels<Panels>(static_cast<const Element*>(a) + i * depth, static_cast<const Element*>(b) + j * depth,
                              depth, tile + i * ld + j, ld, accumulate);
    }
  }
}

template <typename Panels>
int64_t packed_bytes(int64_t ks) {
  return (ks + Panels::kDepth - 1) / Panels::kDepth * static_cast<int64_t>(sizeof(typename Panels::Element));
}

template <typename Panels>
constexpr GemmEngine kEngine{.mr = kRows,
                             .nr = kCols,
                             .depth = kRun,
                             .integer_sums = std::is_integral_v<typename Panels::Element>,
                             .packed_bytes = packed_bytes<Panels>,
                             .pack_a = pack_a<Panels>,
                             .pack_b = pack_b<Panels>,
                             .multiply = multiply<Panels>};

}  // namespace

const GemmEngine& vector_engine() { return kEngine<FloatPanels>; }
const GemmEngine& int8_engine() { return kEngine<PairPanels>; }

}  // namespace octet::cpu
