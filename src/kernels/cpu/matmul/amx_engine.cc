// The AMX engine: bf16 tiles of 16 x 32, four float32 accumulator tiles (32 x 32 outputs) per step.
//
// Packed A: panels of 32 rows; per 32 of depth two tiles [16 rows][32 k]. Packed B: panels of 32 columns; per 32 of
// depth two tiles [16 pairs of k][16 columns][2].
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
constexpr int64_t kMaxDepth = 7168;                // 32 rows of it fit the room that gemm.cc has for A

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

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

// Up to `kRuns` stored runs of bf16, each padded with zeros to a multiple of `unit`: without a copy where possible.
template <int64_t kRuns>
struct Runs {
  alignas(64) uint16_t buffer[kRuns * kMaxRun];
  const uint16_t* run[kRuns];

  void load(const MatrixView& view, int64_t r0, int64_t count, int64_t c, int64_t length, int64_t unit) {
    const int64_t padded = round_up(length, unit);
    for (int64_t i = 0; i < kRuns; ++i) {
      uint16_t* own = buffer + i * kMaxRun;
      run[i] = own;
      if (i >= count) {
        std::memset(own, 0, static_cast<size_t>(padded) * 2);
      } else if (view.dtype == DType::kBF16 && view.scales == nullptr && padded == length) {
        run[i] = static_cast<const uint16_t*>(view.data) + (r0 + i) * view.cols + c;
      } else {
        load_run_bf16(view, r0 + i, c, length, own);
        std::memset(own + length, 0, static_cast<size_t>(padded - length) * 2);
      }
    }
  }
};

// Interleaves depth 2 p and 2 p + 1 of 16 outer elements.
__m512i pair(const uint16_t* even, const uint16_t* odd) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// Stored rows run along the depth. `paired`: tiles of B (transposed pairs), else tiles of A (rows as they are).
template <bool kPaired>
void pack_along_depth(const MatrixView& view, int64_t outer0, int64_t count, int64_t k0, int64_t ks, uint16_t* to) {
  Runs<kTileRows> runs;
  const int64_t depth = round_up(ks, kTileDepth);
  for (int64_t outer = 0; outer < round_up(count, kPanel); outer += kTileRows) {
    uint16_t* tile = to + outer / kPanel * kPanel * depth + outer % kPanel / kTileRows * kTile;
    for (int64_t begin = 0; begin < ks; begin += kMaxRun) {
      const int64_t length = std::min(kMaxRun, ks - begin);
      runs.load(view, outer0 + outer, std::clamp<int64_t>(count - outer, 0, kTileRows), k0 + begin, length, kTileDepth);
      for (int64_t k = 0; k < length; k += kTileDepth, tile += 2 * kTile) {
        __m512i rows[16];
        for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(runs.run[i] + k);
        if (kPaired) transpose_16x16(rows);
        for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tile + i * kTileDepth, rows[i]);
      }
    }
  }
}

// Stored rows run along the outer dimension.
template <bool kPaired>
void pack_across_depth(const MatrixView& view, int64_t outer0, int64_t count, int64_t k0, int64_t ks, uint16_t* to) {
  Runs<kTileDepth> runs;
  const int64_t depth = round_up(ks, kTileDepth), padded = round_up(count, kTileRows);
  for (int64_t k = 0; k < depth; k += kTileDepth) {
    runs.load(view, k0 + k, std::min(kTileDepth, ks - k), outer0, count, kTileRows);
    for (int64_t outer = 0; outer < padded; outer += kTileRows) {
      uint16_t* tile = to + outer / kPanel * kPanel * depth + k * kPanel + outer % kPanel / kTileRows * kTile;
      __m512i rows[16];
      for (int i = 0; i < 16; ++i) rows[i] = pair(runs.run[2 * i] + outer, runs.run[2 * i + 1] + outer);
      if (!kPaired) transpose_16x16(rows);
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tile + i * kTileDepth, rows[i]);
    }
    if (padded % kPanel != 0) std::memset(to + padded / kPanel * kPanel * depth + k * kPanel + kTile, 0, kTile * 2);
  }
}

void pack_a(const MatrixView& a, int64_t m0, int64_t rows, int64_t k0, int64_t ks, void* to) {
  auto* packed = static_cast<uint16_t*>(to);
  a.transposed ? pack_across_depth<false>(a, m0, rows, k0, ks, packed)
               : pack_along_depth<false>(a, m0, rows, k0, ks, packed);
}

void pack_b(const MatrixView& b, int64_t n0, int64_t cols, int64_t k0, int64_t ks, void* to) {
  auto* packed = static_cast<uint16_t*>(to);
  b.transposed ? pack_along_depth<true>(b, n0, cols, k0, ks, packed)
               : pack_across_depth<true>(b, n0, cols, k0, ks, packed);
}

// Rows 4 KiB apart lie in one set of the level 1 cache.
int64_t stored_row(const MatrixView& a) {
  const bool fits = a.dtype == DType::kBF16 && a.scales == nullptr && !a.transposed && a.cols % kTileDepth == 0;
  return fits && a.cols * 2 % 4096 != 0 ? a.cols * 2 : 0;
}

void multiply(const void* a, int64_t a_row, int64_t rows, const void* b, int64_t cols, int64_t ks, float* tile,
              int64_t ld, bool accumulate) {
  const int64_t depth = round_up(ks, kTileDepth);
  const auto left = [&](int64_t outer) -> amx::Operand {
    if (a_row > 0) return {static_cast<const std::byte*>(a) + outer * a_row, a_row, kTileRows * a_row, 2 * kTileDepth};
    return {static_cast<const uint16_t*>(a) + outer * depth, 64, 2 * kTile, 4 * kTile};
  };
  for (int64_t j = 0; j < cols; j += kPanel) {
    const amx::Operand right = {static_cast<const uint16_t*>(b) + j * depth, 64, 2 * kTile, 4 * kTile};
    for (int64_t i = 0; i < rows; i += kPanel) {
      amx::load_block(tile + i * ld + j, ld, accumulate);
      amx::multiply_block(left(i), right, depth);
      amx::store_block(tile + i * ld + j, ld);
    }
  }
}

// Linux requires a request before a process may use the tile registers.
bool ask_for_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const GemmEngine* amx_engine() {
  static const bool allowed = ask_for_tiles();
  static const GemmEngine engine{.mr = kPanel,
                                 .nr = kPanel,
                                 .depth = kMaxDepth,
                                 .integer_sums = false,
                                 .packed_bytes = [](int64_t ks) { return 2 * round_up(ks, kTileDepth); },
                                 .begin = amx::begin_tiles,
                                 .end = amx::end_tiles,
                                 .pack_a = pack_a,
                                 .pack_b = pack_b,
                                 .stored_row = stored_row,
                                 .multiply = multiply};
  return allowed ? &engine : nullptr;
}

}  // namespace octet::cpu
#else
namespace octet::cpu {
const GemmEngine* amx_engine() { return nullptr; }
}  // namespace octet::cpu
#endif
