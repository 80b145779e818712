// The AMX engines: bf16 tiles of 16 x 32, four float32 accumulator tiles (32 x 32 outputs) per step.
//
// Packed A: panels of 32 rows; per 32 of depth and part two tiles [16 rows][32 k]. Packed B: panels of 32 columns; per
// 32 of depth and part two tiles [16 pairs of k][16 columns][2]. Operands in bf16 have one part. Float32 ones have
// three whose sum they are: 8 bits of the mantissa each.
#include "base/integers.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/matmul/gemm.h"

#ifdef OCTET_AMX
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace octet::cpu {
namespace {

constexpr int64_t kTileRows = 16, kTileDepth = 32, kPanel = 32;
constexpr int64_t kTile = kTileRows * kTileDepth;  // elements, 1 KiB
constexpr int64_t kMaxRun = 512;                   // of a stored row that is loaded at once

// As simd::transpose, by unpacking instructions: 1.40 instead of 1.57 ms for FP8 of 512 x 1024 x 1024 on one core.
void transpose_16x16(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

template <bool kTransposed>
void store_rows(__m512i (&rows)[16], uint16_t* tile) {
  if (kTransposed) transpose_16x16(rows);
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tile + i * kTileDepth, rows[i]);
}

// How operands lie before they are packed: `along` gives the parts of 32 elements of a run, as 16 words of the depths
// first(i) and second(i), `pairs` those of 16 words, each of the two elements of one place of two runs.
struct Bf16Source {
  using Element = uint16_t;
  static constexpr DType kStored = DType::kBF16;
  static constexpr int kParts = 1;
  static constexpr auto kLoad = load_run_bf16;
  static int first(int i) { return 2 * i; }
  static int second(int i) { return 2 * i + 1; }
  static void along(const Element* run, __m512i (&parts)[kParts]) { parts[0] = _mm512_loadu_si512(run); }
  static void pairs(const Element* even, const Element* odd, __m512i (&parts)[kParts]) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
    parts[0] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
};

struct Float32Source {
  using Element = float;
  static constexpr DType kStored = DType::kF32;
  static constexpr int kParts = 3;
  static constexpr auto kLoad = load_run;
  // Both operands pair depth i with i + 16.
  static int first(int i) { return i; }
  static int second(int i) { return i + 16; }
  static void along(const Element* run, __m512i (&parts)[kParts]) { pairs(run, run + 16, parts); }
  static void pairs(const Element* low, const Element* high, __m512i (&parts)[kParts]) {
    simd::Floats a = simd::load(low, simd::Full{}), b = simd::load(high, simd::Full{});
    for (int part = 0; part < kParts; ++part) {
      // Of the third, 8 bits or a NaN are left, which rounding could make 0.
      const bool last = part + 1 == kParts;
      const simd::Words x = last ? std::bit_cast<simd::Words>(a) : amx::nearest(a),
                        y = last ? std::bit_cast<simd::Words>(b) : amx::nearest(b);
      parts[part] = (__m512i)amx::pairs(x, y);
      a -= std::bit_cast<simd::Floats>(x), b -= std::bit_cast<simd::Floats>(y);  // exact
    }
  }
};

template <typename Source>
bool is_stored(const MatrixView& view) {
  return view.dtype == Source::kStored && view.scales == nullptr;
}

// Up to `kRuns` stored runs, each padded with zeros to a multiple of `unit`: without a copy where possible.
template <typename Source, int64_t kRuns>
struct Runs {
  using Element = typename Source::Element;
  alignas(64) Element buffer[kRuns * kMaxRun];
  const Element* run[kRuns];

  void load(const MatrixView& view, int64_t r0, int64_t count, int64_t c, int64_t length, int64_t unit) {
    const int64_t padded = round_up(length, unit);
    for (int64_t i = 0; i < kRuns; ++i) {
      Element* own = buffer + i * kMaxRun;
      run[i] = own;
      if (i >= count) {
        std::fill_n(own, padded, Element{});
      } else if (is_stored<Source>(view) && padded == length) {
        run[i] = static_cast<const Element*>(view.data) + (r0 + i) * view.cols + c;
      } else {
        Source::kLoad(view, r0 + i, c, length, own);
        std::fill_n(own + length, padded - length, Element{});
      }
    }
  }
};

// Stored rows run along the depth. `paired`: tiles of B (transposed pairs), else tiles of A (rows as they are).
template <typename Source, bool kPaired>
void pack_along_depth(const MatrixView& view, int64_t outer0, int64_t count, int64_t k0, int64_t ks, uint16_t* to) {
  constexpr int kParts = Source::kParts;
  Runs<Source, kTileRows> runs;
  const int64_t depth = round_up(ks, kTileDepth);
  for (int64_t outer = 0; outer < round_up(count, kPanel); outer += kTileRows) {
    uint16_t* tile = to + outer / kPanel * kPanel * depth * kParts + outer % kPanel / kTileRows * kTile;
    for (int64_t begin = 0; begin < ks; begin += kMaxRun) {
      const int64_t length = std::min(kMaxRun, ks - begin);
      runs.load(view, outer0 + outer, std::clamp<int64_t>(count - outer, 0, kTileRows), k0 + begin, length, kTileDepth);
      for (int64_t k = 0; k < length; k += kTileDepth, tile += 2 * kTile * kParts) {
        __m512i rows[kParts][16];
        for (int i = 0; i < 16; ++i) {
          __m512i parts[kParts];
          Source::along(runs.run[i] + k, parts);
          for (int part = 0; part < kParts; ++part) rows[part][i] = parts[part];
        }
        for (int part = 0; part < kParts; ++part) store_rows<kPaired>(rows[part], tile + part * 2 * kTile);
      }
    }
  }
}

// Stored rows run along the outer dimension.
template <typename Source, bool kPaired>
void pack_across_depth(const MatrixView& view, int64_t outer0, int64_t count, int64_t k0, int64_t ks, uint16_t* to) {
  constexpr int kParts = Source::kParts;
  Runs<Source, kTileDepth> runs;
  const int64_t depth = round_up(ks, kTileDepth), padded = round_up(count, kTileRows);
  for (int64_t k = 0; k < depth; k += kTileDepth) {
    runs.load(view, k0 + k, std::min(kTileDepth, ks - k), outer0, count, kTileRows);
    const auto tile_of = [&](int64_t outer) {
      return to + (outer / kPanel * kPanel * depth + k * kPanel) * kParts + outer % kPanel / kTileRows * kTile;
    };
    for (int64_t outer = 0; outer < padded; outer += kTileRows) {
      __m512i rows[kParts][16];
      for (int i = 0; i < 16; ++i) {
        __m512i parts[kParts];
        Source::pairs(runs.run[Source::first(i)] + outer, runs.run[Source::second(i)] + outer, parts);
        for (int part = 0; part < kParts; ++part) rows[part][i] = parts[part];
      }
      for (int part = 0; part < kParts; ++part) store_rows<!kPaired>(rows[part], tile_of(outer) + part * 2 * kTile);
    }
    for (int part = 0; part < kParts && padded % kPanel != 0; ++part) {
      std::memset(tile_of(padded) + part * 2 * kTile, 0, kTile * 2);
    }
  }
}

template <typename Source>
void pack_a(const MatrixView& a, int64_t m0, int64_t rows, int64_t k0, int64_t ks, void* to) {
  auto* packed = static_cast<uint16_t*>(to);
  a.transposed ? pack_across_depth<Source, false>(a, m0, rows, k0, ks, packed)
               : pack_along_depth<Source, false>(a, m0, rows, k0, ks, packed);
}

template <typename Source>
void pack_b(const MatrixView& b, int64_t n0, int64_t cols, int64_t k0, int64_t ks, void* to) {
  auto* packed = static_cast<uint16_t*>(to);
  b.transposed ? pack_along_depth<Source, true>(b, n0, cols, k0, ks, packed)
               : pack_across_depth<Source, true>(b, n0, cols, k0, ks, packed);
}

// Rows 4 KiB apart lie in one set of the level 1 cache.
int64_t stored_row(const MatrixView& a) {
  const bool fits = is_stored<Bf16Source>(a) && !a.transposed && a.cols % kTileDepth == 0;
  return fits && a.cols * 2 % 4096 != 0 ? a.cols * 2 : 0;
}

// Adds a b of three parts each to the block in the registers: six products. The other three are together at most 2^-24
// of the first, half a unit in the last place of a float32 product.
void multiply_parts(const amx::Operand& a, const amx::Operand& b, int64_t depth) {
  const auto *left = static_cast<const std::byte*>(a.data), *right = static_cast<const std::byte*>(b.data);
  const auto load_left = [&](int part) {
    _tile_loadd(4, left + part * 2 * a.second, a.row);
    _tile_loadd(5, left + part * 2 * a.second + a.second, a.row);
  };
  const auto load_right = [&](int part) {
    _tile_loadd(6, right + part * 2 * b.second, b.row);
    _tile_loadd(7, right + part * 2 * b.second + b.second, b.row);
  };
  const auto add_products = [] {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
  for (int64_t k = 0; k < depth; k += kTileDepth, left += a.next, right += b.next) {
    load_left(2), load_right(0), add_products();
    load_left(1), add_products();
    load_right(1), add_products();
    load_left(0), add_products();
    load_right(2), add_products();
    load_right(0), add_products();
  }
}

template <typename Source>
void multiply(const void* a, int64_t a_row, int64_t rows, const void* b, int64_t cols, int64_t ks, float* tile,
              int64_t ld, bool accumulate) {
  constexpr int64_t kParts = Source::kParts;
  const int64_t depth = round_up(ks, kTileDepth);
  const auto packed = [&](const void* panels, int64_t outer) -> amx::Operand {
    return {static_cast<const uint16_t*>(panels) + outer * depth * kParts, 64, 2 * kTile, 4 * kTile * kParts};
  };
  const auto left = [&](int64_t outer) -> amx::Operand {
    if (a_row > 0) return {static_cast<const std::byte*>(a) + outer * a_row, a_row, kTileRows * a_row, 2 * kTileDepth};
    return packed(a, outer);
  };
  for (int64_t j = 0; j < cols; j += kPanel) {
    for (int64_t i = 0; i < rows; i += kPanel) {
      amx::load_block(tile + i * ld + j, ld, accumulate);
      (kParts == 1 ? amx::multiply_block : multiply_parts)(left(i), packed(b, j), depth);
      amx::store_block(tile + i * ld + j, ld);
    }
  }
}

// Linux requires a request before a process may use the tile registers.
bool ask_for_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// A panel of A in its room.
template <typename Source>
constexpr int64_t kMaxDepth = [] {
  const int64_t steps = kRoomOfA / (kPanel * kTileDepth * 2 * Source::kParts);
  return steps * kTileDepth;
}();

template <typename Source>
constexpr GemmEngine kEngine{.mr = kPanel,
                             .nr = kPanel,
                             .depth = kMaxDepth<Source>,
                             .integer_sums = false,
                             .packed_bytes = [](int64_t ks) { return 2 * Source::kParts * round_up(ks, kTileDepth); },
                             .begin = amx::begin_tiles,
                             .end = amx::end_tiles,
                             .pack_a = pack_a<Source>,
                             .pack_b = pack_b<Source>,
                             .stored_row = Source::kParts == 1 ? stored_row : nullptr,
                             .multiply = multiply<Source>};

bool has_tiles() {
  static const bool allowed = ask_for_tiles();
  return allowed;
}

}  // namespace

const GemmEngine* amx_engine() { return has_tiles() ? &kEngine<Bf16Source> : nullptr; }
const GemmEngine* amx_float_engine() { return has_tiles() ? &kEngine<Float32Source> : nullptr; }

}  // namespace octet::cpu
#else
namespace octet::cpu {
const GemmEngine* amx_engine() { return nullptr; }
const GemmEngine* amx_float_engine() { return nullptr; }
}  // namespace octet::cpu
#endif
