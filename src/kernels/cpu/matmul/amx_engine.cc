// The AMX engine: bf16 tiles of 16 x 32, four float32 accumulator tiles (32 x 32 outputs) per step.
//
// Packed A: panels of 32 rows; per 32 of depth two tiles [16 rows][32 k]. Packed B: panels of 32 columns; per 32 of
// depth two tiles [16 pairs of k][16 columns][2]. AMX flushes denormal operands to zero; bf16 denormals are
// below 1.2e-38.
#include "kernels/cpu/matmul/gemm_engine.h"

#if defined(__AMX_BF16__) && defined(__AVX512BW__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace octet::cpu {
namespace {

constexpr int64_t kTileRows = 16, kTileDepth = 32, kPanel = 32;
constexpr int64_t kTile = kTileRows * kTileDepth;  // elements, 1 KiB
constexpr int64_t kMaxRun = 512;                   // maximum extent packed at once, see gemm.cc

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

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
    runs.load(view, outer0 + outer, std::clamp<int64_t>(count - outer, 0, kTileRows), k0, ks, kTileDepth);
    uint16_t* tile = to + outer / kPanel * kPanel * depth + outer % kPanel / kTileRows * kTile;
    for (int64_t k = 0; k < depth; k += kTileDepth, tile += 2 * kTile) {
      __m512i rows[16];
      for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(runs.run[i] + k);
      if (kPaired) transpose_16x16(rows);
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tile + i * kTileDepth, rows[i]);
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

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

void multiply(const void* a, int64_t rows, const void* b, int64_t cols, int64_t ks, float* tile, int64_t ld,
              bool accumulate) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) config.row_bytes[i] = 64, config.rows[i] = 16;
  _tile_loadconfig(&config);
  const int64_t depth = round_up(ks, kTileDepth), stride = ld * 4;
  for (int64_t j = 0; j < cols; j += kPanel) {
    for (int64_t i = 0; i < rows; i += kPanel) {
      const auto* left = static_cast<const uint16_t*>(a) + i * depth;
      const auto* right = static_cast<const uint16_t*>(b) + j * depth;
      float *c00 = tile + i * ld + j, *c01 = c00 + 16, *c10 = c00 + 16 * ld, *c11 = c10 + 16;
      if (accumulate) {
        _tile_loadd(0, c00, stride);
        _tile_loadd(1, c01, stride);
        _tile_loadd(2, c10, stride);
        _tile_loadd(3, c11, stride);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int64_t k = 0; k < depth; k += kTileDepth, left += 2 * kTile, right += 2 * kTile) {
        _tile_loadd(4, left, 64);
        _tile_loadd(6, right, 64);
        _tile_loadd(7, right + kTile, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, left + kTile, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, c00, stride);
      _tile_stored(1, c01, stride);
      _tile_stored(2, c10, stride);
      _tile_stored(3, c11, stride);
    }
  }
  _tile_release();
}

// Linux requires a request before a process may use the tile registers.
bool ask_for_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const GemmEngine* amx_engine() {
  static const bool allowed = ask_for_tiles();
  static const GemmEngine engine{.name = "amx",
                                 .mr = kPanel,
                                 .nr = kPanel,
                                 .kr = kTileDepth,
                                 .element_bytes = 2,
                                 .integer_sums = false,
                                 .pack_a = pack_a,
                                 .pack_b = pack_b,
                                 .multiply = multiply};
  return allowed ? &engine : nullptr;
}

}  // namespace octet::cpu
#else
namespace octet::cpu {
const GemmEngine* amx_engine() { return nullptr; }
}  // namespace octet::cpu
#endif
