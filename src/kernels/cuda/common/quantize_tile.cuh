// One tile of quantize, 128 x 128 elements on 256 threads: row codes, the codes of its transpose, scales and amax from
// values that are in registers once. Kernels that end in a quantize fill a TilePart and call quantize_tile.
//
// Thread t holds rows 4 (t / 8) .. + 3 and columns 16 (t % 8) .. + 15 of the tile: a row's 8 threads read and write 128
// neighbours. Transposed codes go through shared memory in words of 4 rows, blocks of 16 bytes swizzled by column
// group: no bank conflicts on either side. The arithmetic is the reference's (docs/numerics.md).
#pragma once

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/scale_formula.cuh"
#include "kernels/cuda/precision/quantize.h"

namespace octet::cuda {

inline constexpr int kTile = 128, kTileThreads = 256, kPartRows = 4, kPartCols = 16;

// Four codes, the first in the lowest byte: x * scale with one rounding each, pairs converted at once. A NaN keeps the
// sign of x; the sign of every other code is that of x anyway, scales being positive.
template <typename Code>
__device__ __forceinline__ uint32_t encode4(float x0, float x1, float x2, float x3, float s0, float s1, float s2,
                                            float s3) {
  constexpr __nv_fp8_interpretation_t kFormat = std::is_same_v<Code, e4m3> ? __NV_E4M3 : __NV_E5M2;
  const uint32_t low = __nv_cvt_float2_to_fp8x2({x0 * s0, x1 * s1}, __NV_SATFINITE, kFormat),
                 high = __nv_cvt_float2_to_fp8x2({x2 * s2, x3 * s3}, __NV_SATFINITE, kFormat);
  uint32_t codes = __byte_perm(low, high, 0x5410);
  const uint32_t signs = __byte_perm(__byte_perm(__float_as_uint(x0), __float_as_uint(x1), 0x0073),
                                     __byte_perm(__float_as_uint(x2), __float_as_uint(x3), 0x0073), 0x5410);
  codes |= signs & 0x80808080u;
  if constexpr (std::is_same_v<Code, e5m2>) {  // exponent bits all set: a NaN, whose code is 0x7e
    const uint32_t is_nan = (((codes & 0x7c7c7c7cu) + 0x04040404u) >> 7) & 0x01010101u;
    codes &= ~is_nan;
  }
  return codes;
}
template <typename Code>
__device__ __forceinline__ uint32_t encode4(float x0, float x1, float x2, float x3, float scale) {
  return encode4<Code>(x0, x1, x2, x3, scale, scale, scale, scale);
}

// Maxima of magnitudes in the packing of T: two bf16 a word, or one float32.
template <typename T>
struct Magnitudes;
template <>
struct Magnitudes<float> {
  static constexpr uint32_t kMask = 0x7fffffffu;
  __device__ static uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
  __device__ static uint32_t bits(uint32_t packed) { return packed; }  // of the largest, as float32
};
template <>
struct Magnitudes<bf16> {
  static constexpr uint32_t kMask = 0x7fff7fffu;
  __device__ static uint32_t max(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }
  __device__ static uint32_t bits(uint32_t packed) { return ::max(packed << 16, packed & 0xffff0000u); }
};

// A thread's 4 x 16 elements of a tile, packed.
template <typename T>
struct TilePart {
  static constexpr int kWords = kPartCols * static_cast<int>(sizeof(T)) / 4;  // of a row
  uint32_t at[kPartRows][kWords];

  __device__ static int row() { return static_cast<int>(threadIdx.x >> 3) * kPartRows; }  // in the tile
  __device__ static int col() { return static_cast<int>(threadIdx.x & 7) * kPartCols; }

  __device__ __forceinline__ float value(int i, int j) const {
    if constexpr (sizeof(T) == 4) return __uint_as_float(at[i][j]);
    const uint32_t word = at[i][j / 2];
    return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
  // Elements j and j + 1, j even, rounded to T.
  __device__ __forceinline__ void set(int i, int j, float x0, float x1) {
    if constexpr (sizeof(T) == 4) {
      at[i][j] = __float_as_uint(x0), at[i][j + 1] = __float_as_uint(x1);
    } else {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x0, x1);
      at[i][j / 2] = reinterpret_cast<const uint32_t&>(pair);
    }
  }

  // The part of the tile at (r0, c0) of x [rows, cols]; 0 beyond the edges.
  __device__ __forceinline__ void load(const T* x, int64_t rows, int64_t cols, int64_t r0, int64_t c0, bool vector) {
    const int64_t c = c0 + col();
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) {
      const int64_t r = r0 + row() + i;
      const T* from = x + r * cols + c;
      if (vector) {
#pragma unroll
        for (int w = 0; w < kWords; w += 4) {
          uint4 four = {0, 0, 0, 0};
          if (r < rows && c < cols) four = *reinterpret_cast<const uint4*>(from + w * 4 / static_cast<int>(sizeof(T)));
          at[i][w] = four.x, at[i][w + 1] = four.y, at[i][w + 2] = four.z, at[i][w + 3] = four.w;
        }
      } else {
#pragma unroll
        for (int j = 0; j < kPartCols; j += 2) {
          const float x0 = r < rows && c + j < cols ? to_float(from[j]) : 0.0f;
          const float x1 = r < rows && c + j + 1 < cols ? to_float(from[j + 1]) : 0.0f;
          set(i, j, x0, x1);
        }
      }
    }
  }
};

struct TileScratch {
  alignas(16) uint32_t codes_t[kTile * kTile / 4];  // also [8][128] column maxima before the codes
  alignas(16) float col_scale[kTile];
  uint32_t amax[8];
};

// Column scales of kRow128 and kRow, into scratch.col_scale; begins after, ends with a barrier.
template <Grouping kGrouping, typename T>
__device__ __forceinline__ void tile_column_scales(const TilePart<T>& x, int64_t r0, int64_t c0, const QuantizeJob& job,
                                                   TileScratch& scratch) {
  using M = Magnitudes<T>;
  constexpr int kWords = TilePart<T>::kWords;
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  if constexpr (kGrouping == Grouping::kRow128) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      uint32_t most = 0;
#pragma unroll
      for (int i = 0; i < kPartRows; ++i) most = M::max(most, x.at[i][w] & M::kMask);
      most = M::max(most, __shfl_xor_sync(kWholeWarp, most, 8));
      most = M::max(most, __shfl_xor_sync(kWholeWarp, most, 16));
      if (lane < 8) scratch.codes_t[(warp * 8 + lane) * kWords + w] = most;
    }
    __syncthreads();
  }
  if (const int c = static_cast<int>(threadIdx.x); c < kTile) {
    uint32_t most = 0;
    if constexpr (kGrouping == Grouping::kRow128) {
      constexpr int kPacked = 4 / static_cast<int>(sizeof(T));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t word = scratch.codes_t[i * 8 * kWords + c / kPacked];
        const uint32_t bits = kPacked == 1 ? word : (c % 2 == 0 ? word << 16 : word & 0xffff0000u);
        most = max(most, bits);
      }
    } else if (c0 + c < job.cols) {
      most = job.col_amax[c0 + c];
    }
    const float scale = ScaleFormula{job.max, job.margin, job.pow2}(most);
    scratch.col_scale[c] = scale;
    if (job.scale_inv_t != nullptr && c0 + c < job.cols) {
      const int64_t groups = kGrouping == Grouping::kRow ? 1 : (job.rows + kTile - 1) / kTile;
      const int64_t group = kGrouping == Grouping::kRow ? 0 : r0 / kTile;
      if (kGrouping != Grouping::kRow || r0 == 0) job.scale_inv_t[(c0 + c) * groups + group] = 1.0f / scale;
    }
  }
  __syncthreads();
}

// Everything job wants of the tile at (r0, c0). All 256 threads call it. For kRow it makes the transposed codes only.
// job.scale_inv and scale_inv_t of kTensor are written by the tile at (0, 0).
template <Grouping kGrouping, typename Code, typename T>
__device__ __forceinline__ void quantize_tile(const TilePart<T>& x, int64_t r0, int64_t c0, const QuantizeJob& job,
                                              TileScratch& scratch) {
  using M = Magnitudes<T>;
  constexpr int kWords = TilePart<T>::kWords;
  constexpr bool kByRow = kGrouping == Grouping::kRow128 || kGrouping == Grouping::kRow;
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  const int64_t r = r0 + x.row(), c = c0 + x.col();
  const ScaleFormula formula{job.max, job.margin, job.pow2};

  uint32_t row_amax[kPartRows] = {};  // packed, of this thread's columns; then of the row's 128
  float row_scale[kPartRows];
  if (kGrouping == Grouping::kTile128 || kGrouping == Grouping::kRow128 || job.amax != nullptr) {
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) row_amax[i] = M::max(row_amax[i], x.at[i][w] & M::kMask);
    }
  }
  if constexpr (kGrouping == Grouping::kRow128) {
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) {
#pragma unroll
      for (int lanes = 4; lanes > 0; lanes >>= 1)
        row_amax[i] = M::max(row_amax[i], __shfl_xor_sync(kWholeWarp, row_amax[i], lanes));
    }
    // Lane i of a row group makes the scale of its row i.
    const int mine = lane % 8;
    const uint32_t of_mine = mine == 0 ? row_amax[0] : mine == 1 ? row_amax[1] : mine == 2 ? row_amax[2] : row_amax[3];
    const float scale_of_mine = formula(M::bits(of_mine));
    if (job.scale_inv != nullptr && mine < kPartRows && r + mine < job.rows)
      job.scale_inv[(r + mine) * ((job.cols + kTile - 1) / kTile) + c0 / kTile] = 1.0f / scale_of_mine;
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) row_scale[i] = __shfl_sync(kWholeWarp, scale_of_mine, i, 8);
  }
  const uint32_t part_amax = M::bits(M::max(M::max(row_amax[0], row_amax[1]), M::max(row_amax[2], row_amax[3])));
  float scale = 1.0f;
  if constexpr (kGrouping == Grouping::kTensor) {
    scale = *job.scale;
    if (r0 == 0 && c0 == 0 && threadIdx.x == 0) {
      if (job.scale_inv != nullptr) *job.scale_inv = 1.0f / scale;
      if (job.scale_inv_t != nullptr) *job.scale_inv_t = 1.0f / scale;
    }
    if (job.amax != nullptr) block_amax(part_amax, job.amax);
  } else if constexpr (kGrouping == Grouping::kTile128 || kGrouping == Grouping::kRow128) {
    if (kGrouping == Grouping::kTile128 || job.amax != nullptr) {
      const uint32_t most = warp_max(part_amax);
      if (lane == 0) scratch.amax[warp] = most;
      __syncthreads();
      uint32_t tile_amax = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) tile_amax = max(tile_amax, scratch.amax[i]);
      if (job.amax != nullptr && threadIdx.x == 0) atomicMax(reinterpret_cast<uint32_t*>(job.amax), tile_amax);
      if constexpr (kGrouping == Grouping::kTile128) {
        scale = formula(tile_amax);
        const int64_t row_tiles = (job.rows + kTile - 1) / kTile, col_tiles = (job.cols + kTile - 1) / kTile;
        if (threadIdx.x == 0) {
          if (job.scale_inv != nullptr) job.scale_inv[r0 / kTile * col_tiles + c0 / kTile] = 1.0f / scale;
          if (job.scale_inv_t != nullptr) job.scale_inv_t[c0 / kTile * row_tiles + r0 / kTile] = 1.0f / scale;
        }
      }
    }
  }
  if constexpr (!kByRow) {
#pragma unroll
    for (float& s : row_scale) s = scale;
  }

  uint32_t codes[kPartRows][kPartCols / 4];
  if (kGrouping != Grouping::kRow && (job.codes != nullptr || (!kByRow && job.codes_t != nullptr))) {
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) {
#pragma unroll
      for (int q = 0; q < kPartCols / 4; ++q) {
        codes[i][q] = encode4<Code>(x.value(i, 4 * q), x.value(i, 4 * q + 1), x.value(i, 4 * q + 2),
                                    x.value(i, 4 * q + 3), row_scale[i]);
      }
      if (job.codes == nullptr || r + i >= job.rows) continue;
      uint8_t* to = job.codes + (r + i) * job.cols + c;
      if (job.vector) {
        if (c < job.cols) *reinterpret_cast<uint4*>(to) = {codes[i][0], codes[i][1], codes[i][2], codes[i][3]};
      } else {
#pragma unroll
        for (int j = 0; j < kPartCols; ++j)
          if (c + j < job.cols) to[j] = static_cast<uint8_t>(codes[i][j / 4] >> (j % 4 * 8));
      }
    }
  }

  if constexpr (kByRow) {
    if (job.codes_t != nullptr || job.scale_inv_t != nullptr) tile_column_scales<kGrouping>(x, r0, c0, job, scratch);
  }
  if (job.codes_t == nullptr) return;
  // Word w (rows 4 w ..) of column c lies in block (w / 4) ^ (c / 16) of the column's 8 blocks of 4 words.
  const int group = static_cast<int>(threadIdx.x & 7);
  uint32_t* mine = scratch.codes_t + x.col() * (kTile / 4) + (((warp ^ group) << 2) | (lane >> 3));
#pragma unroll
  for (int q = 0; q < kPartCols / 4; ++q) {
    uint32_t words[4];
    if constexpr (kByRow) {
      const float4 s = *reinterpret_cast<const float4*>(scratch.col_scale + x.col() + 4 * q);
      const float scales[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        words[j] = encode4<Code>(x.value(0, 4 * q + j), x.value(1, 4 * q + j), x.value(2, 4 * q + j),
                                 x.value(3, 4 * q + j), scales[j]);
    } else {
      const uint32_t low01 = __byte_perm(codes[0][q], codes[1][q], 0x5140),
                     high01 = __byte_perm(codes[0][q], codes[1][q], 0x7362),
                     low23 = __byte_perm(codes[2][q], codes[3][q], 0x5140),
                     high23 = __byte_perm(codes[2][q], codes[3][q], 0x7362);
      words[0] = __byte_perm(low01, low23, 0x5410), words[1] = __byte_perm(low01, low23, 0x7632);
      words[2] = __byte_perm(high01, high23, 0x5410), words[3] = __byte_perm(high01, high23, 0x7632);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) mine[(4 * q + j) * (kTile / 4)] = words[j];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int column = (k * kTileThreads + static_cast<int>(threadIdx.x)) >> 3,
              block = static_cast<int>(threadIdx.x & 7);
    const uint4 rows16 =
        *reinterpret_cast<const uint4*>(scratch.codes_t + column * (kTile / 4) + ((block ^ (column >> 4)) << 2));
    const int64_t first = r0 + block * 16;
    if (c0 + column >= job.cols || first >= job.rows) continue;
    uint8_t* to = job.codes_t + (c0 + column) * job.rows + first;
    if (job.vector) {
      *reinterpret_cast<uint4*>(to) = rows16;
    } else {
      const uint32_t words[4] = {rows16.x, rows16.y, rows16.z, rows16.w};
#pragma unroll
      for (int j = 0; j < 16; ++j)
        if (first + j < job.rows) to[j] = static_cast<uint8_t>(words[j / 4] >> (j % 4 * 8));
    }
  }
}

}  // namespace octet::cuda
