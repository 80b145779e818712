// One tile of quantize, 128 x 128 elements on 256 threads: row codes, the codes of its transpose, scales and amax from
// values that are in registers once. Kernels that end in a quantize fill a TilePart and call quantize_tile.
//
// Thread t holds rows 4 (t / 8) .. + 3 and columns 16 (t % 8) .. + 15 of the tile: a row's 8 threads read and write 128
// neighbours. Transposed codes go through shared memory in words of 4 rows, blocks of 16 bytes swizzled by column
// group: no bank conflicts on either side. 1x128 scales leave in whole sectors, those of a warp's 16 rows or 32 columns
// side by side. The arithmetic is the reference's (docs/numerics.md).
#pragma once

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/scale_formula.cuh"
#include "kernels/cuda/precision/quantize.h"

namespace octet::cuda {

inline constexpr int kTile = 128, kTileThreads = 256, kPartRows = 4, kPartCols = 16;

// Four codes, the first in the lowest byte: x * scale with one rounding each, pairs converted at once. The sign of
// every code but a NaN's is that of x, scales being positive.
template <typename Code>
__device__ __forceinline__ uint32_t encode4_numbers(float x0, float x1, float x2, float x3, const float (&scales)[4]) {
  if constexpr (std::is_same_v<Code, int8_t>) {
    const auto code = [](float x, float scale) {
      return static_cast<uint32_t>(static_cast<uint8_t>(from_float<int8_t>(x * scale)));
    };
    return code(x0, scales[0]) | code(x1, scales[1]) << 8 | code(x2, scales[2]) << 16 | code(x3, scales[3]) << 24;
  } else {
    constexpr __nv_fp8_interpretation_t kFormat = std::is_same_v<Code, e4m3> ? __NV_E4M3 : __NV_E5M2;
    const uint32_t low = __nv_cvt_float2_to_fp8x2({x0 * scales[0], x1 * scales[1]}, __NV_SATFINITE, kFormat),
                   high = __nv_cvt_float2_to_fp8x2({x2 * scales[2], x3 * scales[3]}, __NV_SATFINITE, kFormat);
    return __byte_perm(low, high, 0x5410);
  }
}
template <typename Code>
__device__ __forceinline__ uint32_t encode4_numbers(float x0, float x1, float x2, float x3, float scale) {
  return encode4_numbers<Code>(x0, x1, x2, x3, {scale, scale, scale, scale});
}
// The same codes where some x may be NaNs: those keep the sign of x, and that of e5m2 is 0x7e. `signs`: the highest bit
// of each byte is that of an x.
template <typename Code>
__device__ __forceinline__ uint32_t with_nans(uint32_t codes, uint32_t signs) {
  if constexpr (!std::is_same_v<Code, int8_t>) codes |= signs & 0x80808080u;  // of int8 a NaN is 0
  if constexpr (std::is_same_v<Code, e5m2>) {                                 // exponent bits all set
    const uint32_t is_nan = (((codes & 0x7c7c7c7cu) + 0x04040404u) >> 7) & 0x01010101u;
    codes &= ~is_nan;
  }
  return codes;
}
// The highest byte of each of four words.
__device__ __forceinline__ uint32_t high_bytes(uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
  return __byte_perm(__byte_perm(x0, x1, 0x0073), __byte_perm(x2, x3, 0x0073), 0x5410);
}
template <typename Code>
__device__ __forceinline__ uint32_t encode4(float x0, float x1, float x2, float x3, const float (&scales)[4]) {
  return with_nans<Code>(
      encode4_numbers<Code>(x0, x1, x2, x3, scales),
      high_bytes(__float_as_uint(x0), __float_as_uint(x1), __float_as_uint(x2), __float_as_uint(x3)));
}
template <typename Code>
__device__ __forceinline__ uint32_t encode4(float x0, float x1, float x2, float x3, float scale) {
  return encode4<Code>(x0, x1, x2, x3, {scale, scale, scale, scale});
}

// Maxima of magnitudes, and a trace of NaNs, in the packing of T: two bf16 a word, or one float32.
template <typename T>
struct Magnitudes;
template <>
struct Magnitudes<float> {
  static constexpr uint32_t kMask = 0x7fffffffu;
  __device__ static uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
  __device__ static uint32_t bits(uint32_t packed) { return packed; }  // of the largest, as float32
  // sum + a b: a NaN for good once a factor was one.
  __device__ static uint32_t add_product(uint32_t sum, uint32_t a, uint32_t b) {
    return __float_as_uint(__fmaf_rn(__uint_as_float(a), __uint_as_float(b), __uint_as_float(sum)));
  }
  __device__ static bool finite(uint32_t sum) { return (sum & 0x7f800000u) != 0x7f800000u; }
};
template <>
struct Magnitudes<bf16> {
  static constexpr uint32_t kMask = 0x7fff7fffu;
  __device__ static uint32_t max(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }
  __device__ static uint32_t bits(uint32_t packed) { return ::max(packed << 16, packed & 0xffff0000u); }
  __device__ static uint32_t add_product(uint32_t sum, uint32_t a, uint32_t b) {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
  }
  __device__ static bool finite(uint32_t sum) { return (((sum & 0x7f807f80u) + 0x00800080u) & 0x80008000u) == 0; }
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
  // with_nans' `signs` of elements j .. j + 3 of row i, j a multiple of 4; of the four elements of column j.
  __device__ __forceinline__ uint32_t row_signs(int i, int j) const {
    if constexpr (sizeof(T) == 4) return high_bytes(at[i][j], at[i][j + 1], at[i][j + 2], at[i][j + 3]);
    return __byte_perm(at[i][j / 2], at[i][j / 2 + 1], 0x7531);
  }
  __device__ __forceinline__ uint32_t column_signs(int j) const {
    if constexpr (sizeof(T) == 4) return high_bytes(at[0][j], at[1][j], at[2][j], at[3][j]);
    const int w = j / 2, bytes = j % 2 == 0 ? 0x0051 : 0x0073;
    return __byte_perm(__byte_perm(at[0][w], at[1][w], bytes), __byte_perm(at[2][w], at[3][w], bytes), 0x5410);
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

  // The part of the tile at (r0, c0) of x [rows, cols]; 0 beyond the edges. kVector: 16-byte accesses fit every row.
  template <bool kVector>
  __device__ __forceinline__ void load(const T* x, int64_t rows, int64_t cols, int64_t r0, int64_t c0) {
    const int64_t c = c0 + col(), r = r0 + row();
    const T* from = x + r * cols + c;
#pragma unroll
    for (int i = 0; i < kPartRows; ++i, from += cols) {
      if constexpr (kVector) {
#pragma unroll
        for (int w = 0; w < kWords; w += 4) {
          uint4 four = {0, 0, 0, 0};
          if (r + i < rows && c < cols)
            four = *reinterpret_cast<const uint4*>(from + w * 4 / static_cast<int>(sizeof(T)));
          at[i][w] = four.x, at[i][w + 1] = four.y, at[i][w + 2] = four.z, at[i][w + 3] = four.w;
        }
      } else {
#pragma unroll
        for (int j = 0; j < kPartCols; j += 2) {
          const float x0 = r + i < rows && c + j < cols ? to_float(from[j]) : 0.0f;
          const float x1 = r + i < rows && c + j + 1 < cols ? to_float(from[j + 1]) : 0.0f;
          set(i, j, x0, x1);
        }
      }
    }
  }

  // Whether no element is a NaN; false too where infinities or huge numbers hide that. Cheaper than signs for all.
  __device__ __forceinline__ bool only_numbers() const {
    uint32_t sum = 0;
    unroll<kPartRows>([&](int i) {
#pragma unroll
      for (int w = 0; w < kWords; w += 2) sum = Magnitudes<T>::add_product(sum, at[i][w], at[i][w + 1]);
    });
    return Magnitudes<T>::finite(sum);
  }
};

struct TileScratch {
  alignas(16) uint32_t codes_t[kTile * kTile / 4];  // also [8][128] column maxima before the codes
  alignas(16) float col_scale[kTile];
  uint32_t amax[8];
};

// Maxima of packed words over the lanes that differ in the bit `lanes` of their number: each lane goes on with half of
// its kLive words, those of the upper half where its bit is set.
template <typename M, int kLive, int kWords>
__device__ __forceinline__ void halve_max(uint32_t (&words)[kWords], int lanes) {
  const bool high = (threadIdx.x & lanes) != 0;
  unroll<kLive / 2>([&](int k) {
    const uint32_t mine = high ? words[k + kLive / 2] : words[k], other = high ? words[k] : words[k + kLive / 2];
    words[k] = M::max(mine, __shfl_xor_sync(kWholeWarp, other, lanes));
  });
}

// Four rows of four codes to four columns of them.
__device__ __forceinline__ void turn_codes(const uint32_t (&rows)[4], uint32_t (&columns)[4]) {
  const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140), high01 = __byte_perm(rows[0], rows[1], 0x7362),
                 low23 = __byte_perm(rows[2], rows[3], 0x5140), high23 = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(low01, low23, 0x5410), columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410), columns[3] = __byte_perm(high01, high23, 0x7632);
}
// Where this thread puts its words of four rows, those of its next column kTile / 4 further on: word w (rows 4 w ..) of
// column c lies in block (w / 4) ^ (c / 16) of the column's 8 blocks of 4 words.
__device__ __forceinline__ uint32_t* turned_codes_of_thread(TileScratch& scratch) {
  const int thread = static_cast<int>(threadIdx.x), group = thread & 7;
  return scratch.codes_t + group * kPartCols * (kTile / 4) + ((((thread >> 5) ^ group) << 2) | (thread >> 3 & 3));
}
// Once all threads have put theirs: the tile at (r0, c0) of a matrix of [rows, cols] to codes_t [cols, rows].
template <bool kVector>
__device__ __forceinline__ void store_turned_codes(const TileScratch& scratch, uint8_t* codes_t, int64_t r0, int64_t c0,
                                                   int64_t rows, int64_t cols) {
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x), block = thread & 7;
  const int64_t first = r0 + block * 16;
  uint8_t* to = codes_t + (c0 + (thread >> 3)) * rows + first;
#pragma unroll
  for (int k = 0; k < 4; ++k, to += kTileThreads / 8 * rows) {
    const int column = k * (kTileThreads / 8) + (thread >> 3);
    const uint4 rows16 =
        *reinterpret_cast<const uint4*>(scratch.codes_t + column * (kTile / 4) + ((block ^ (column >> 4)) << 2));
    if (c0 + column >= cols || first >= rows) continue;
    if constexpr (kVector) {
      *reinterpret_cast<uint4*>(to) = rows16;
    } else {
      const uint32_t words[4] = {rows16.x, rows16.y, rows16.z, rows16.w};
      unroll<16>([&](int j) {
        if (first + j < rows) to[j] = static_cast<uint8_t>(words[j / 4] >> (j % 4 * 8));
      });
    }
  }
}

// The scale of kTensor, and the results that one thread of all writes.
__device__ __forceinline__ float tensor_scale(const QuantizeJob& job) {
  if (job.scale_from == nullptr) return *job.scale;
  return scale_of(job.formula, __float_as_uint(*job.scale_from));
}
__device__ __forceinline__ void store_tensor_scale(const QuantizeJob& job, float scale) {
  for (float* to : {job.scale_inv, job.scale_inv_t, job.made_scale_inv})
    if (to != nullptr) *to = 1.0f / scale;
  if (job.made_scale != nullptr) *job.made_scale = scale;
}

// Column scales of kRow128 and kRow, into scratch.col_scale; begins after, ends with a barrier.
template <ScaleLayout kLayout, typename T>
__device__ __forceinline__ void tile_column_scales(const TilePart<T>& x, int64_t r0, int64_t c0, const QuantizeJob& job,
                                                   TileScratch& scratch) {
  using M = Magnitudes<T>;
  constexpr int kWords = TilePart<T>::kWords;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kLayout == ScaleLayout::kRow128) {
    uint32_t most[kWords];
    unroll<kWords>([&](int w) {
      most[w] = x.at[0][w] & M::kMask;
#pragma unroll
      for (int i = 1; i < kPartRows; ++i) most[w] = M::max(most[w], x.at[i][w] & M::kMask);
    });
    halve_max<M, kWords>(most, 16);
    halve_max<M, kWords / 2>(most, 8);
    uint32_t* to = scratch.codes_t + ((thread >> 5) * 8 + (thread & 7)) * kWords + ((thread >> 4) & 1) * (kWords / 2) +
                   ((thread >> 3) & 1) * (kWords / 4);
#pragma unroll
    for (int w = 0; w < kWords / 4; w += 2) *reinterpret_cast<uint2*>(to + w) = {most[w], most[w + 1]};
    __syncthreads();
  }
  if (const int c = thread; c < kTile) {
    uint32_t most = 0;
    if constexpr (kLayout == ScaleLayout::kRow128) {
      constexpr int kPacked = 4 / static_cast<int>(sizeof(T));
      unroll<8>([&](int i) { most = M::max(most, scratch.codes_t[i * 8 * kWords + c / kPacked]); });
      if constexpr (kPacked == 2) most = c % 2 == 0 ? most << 16 : most & 0xffff0000u;
    } else if (c0 + c < job.cols) {
      most = job.col_amax[c0 + c];
    }
    const float scale = scale_of(job.formula, most);
    scratch.col_scale[c] = scale;
    if (job.scale_inv_t != nullptr && c0 + c < job.cols) {
      if (kLayout == ScaleLayout::kRow128 || r0 == 0)
        job.scale_inv_t[row128_scale_index(c0 + c, r0 / kTile, job.cols)] = 1.0f / scale;
    }
  }
  __syncthreads();
}

// Everything job wants of the tile at (r0, c0). All 256 threads call it. For kRow it makes the transposed codes only.
// job.scale_inv and scale_inv_t of kTensor are written by the tile at (0, 0). kVector: job.vector.
template <ScaleLayout kLayout, typename Code, bool kVector, typename T>
__device__ __forceinline__ void quantize_tile(const TilePart<T>& x, int64_t r0, int64_t c0, const QuantizeJob& job,
                                              TileScratch& scratch) {
  using M = Magnitudes<T>;
  constexpr int kWords = TilePart<T>::kWords;
  constexpr bool kByRow = kLayout == ScaleLayout::kRow128 || kLayout == ScaleLayout::kRow;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int64_t r = r0 + x.row(), c = c0 + x.col();

  uint32_t row_amax[kPartRows] = {};  // packed, of this thread's columns
  float row_scale[kPartRows];
  constexpr bool kMeasured = kLayout == ScaleLayout::kTile128 || kLayout == ScaleLayout::kRow128;
  if (kMeasured || job.amax != nullptr) {
    unroll<kPartRows, kWords>([&](int i, int w) { row_amax[i] = M::max(row_amax[i], x.at[i][w] & M::kMask); });
  }
  const uint32_t part_amax = M::bits(M::max(M::max(row_amax[0], row_amax[1]), M::max(row_amax[2], row_amax[3])));
  const bool numbers = kMeasured ? part_amax <= 0x7f800000u : x.only_numbers();
  if constexpr (kLayout == ScaleLayout::kRow128) {
    // Of the 8 threads of four rows, threads 2 i and 2 i + 1 get the amax of row i and make its scale.
    halve_max<M, 4>(row_amax, 4);
    halve_max<M, 2>(row_amax, 2);
    const uint32_t amax = M::bits(M::max(row_amax[0], __shfl_xor_sync(kWholeWarp, row_amax[0], 1)));
    const float scale = scale_of(job.formula, amax);
    const int mine = lane % 8 / 2;
    if (job.scale_inv != nullptr && lane % 2 == 0 && r + mine < job.rows)
      job.scale_inv[row128_scale_index(r + mine, c0 / kTile, job.rows)] = 1.0f / scale;
    unroll<kPartRows>([&](int i) { row_scale[i] = __shfl_sync(kWholeWarp, scale, 2 * i, 8); });
  }
  float scale = 1.0f;
  if constexpr (kLayout == ScaleLayout::kTensor) {
    scale = tensor_scale(job);
    if (r0 == 0 && c0 == 0 && thread == 0) store_tensor_scale(job, scale);
    if (job.amax != nullptr) block_amax(part_amax, job.amax);
  } else if constexpr (kMeasured) {
    if (kLayout == ScaleLayout::kTile128 || job.amax != nullptr) {
      const uint32_t most = warp_max(part_amax);
      if (lane == 0) scratch.amax[warp] = most;
      __syncthreads();
      uint32_t tile_amax = 0;
      unroll<8>([&](int i) { tile_amax = max(tile_amax, scratch.amax[i]); });
      if (job.amax != nullptr && thread == 0) atomicMax(reinterpret_cast<uint32_t*>(job.amax), tile_amax);
      if constexpr (kLayout == ScaleLayout::kTile128) {
        scale = scale_of(job.formula, tile_amax);
        const int64_t row_tiles = (job.rows + kTile - 1) / kTile, col_tiles = (job.cols + kTile - 1) / kTile;
        if (thread == 0) {
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
  if (kLayout != ScaleLayout::kRow && (job.codes != nullptr || (!kByRow && job.codes_t != nullptr))) {
    uint8_t* to = job.codes + r * job.cols + c;
#pragma unroll
    for (int i = 0; i < kPartRows; ++i, to += job.cols) {
      unroll<kPartCols / 4>([&](int q) {
        codes[i][q] = encode4_numbers<Code>(x.value(i, 4 * q), x.value(i, 4 * q + 1), x.value(i, 4 * q + 2),
                                            x.value(i, 4 * q + 3), row_scale[i]);
      });
      if (!numbers) {
        unroll<kPartCols / 4>([&](int q) { codes[i][q] = with_nans<Code>(codes[i][q], x.row_signs(i, 4 * q)); });
      }
      if (job.codes == nullptr || r + i >= job.rows) continue;
      if constexpr (kVector) {
        if (c < job.cols) *reinterpret_cast<uint4*>(to) = {codes[i][0], codes[i][1], codes[i][2], codes[i][3]};
      } else {
        unroll<kPartCols>([&](int j) {
          if (c + j < job.cols) to[j] = static_cast<uint8_t>(codes[i][j / 4] >> (j % 4 * 8));
        });
      }
    }
  }

  if constexpr (kByRow) {
    if (job.codes_t != nullptr || job.scale_inv_t != nullptr) tile_column_scales<kLayout>(x, r0, c0, job, scratch);
  }
  if (job.codes_t == nullptr) return;
  uint32_t* mine = turned_codes_of_thread(scratch);
  unroll<kPartCols / 4>([&](int q) {
    uint32_t words[4];
    if constexpr (kByRow) {
      const float4 s = *reinterpret_cast<const float4*>(scratch.col_scale + x.col() + 4 * q);
      const float scales[4] = {s.x, s.y, s.z, s.w};
      unroll<4>([&](int j) {
        const int k = 4 * q + j;
        words[j] = encode4_numbers<Code>(x.value(0, k), x.value(1, k), x.value(2, k), x.value(3, k), scales[j]);
      });
      if (!numbers) {
        unroll<4>([&](int j) { words[j] = with_nans<Code>(words[j], x.column_signs(4 * q + j)); });
      }
    } else {
      turn_codes({codes[0][q], codes[1][q], codes[2][q], codes[3][q]}, words);
    }
    unroll<4>([&](int j) { mine[(4 * q + j) * (kTile / 4)] = words[j]; });
  });
  store_turned_codes<kVector>(scratch, job.codes_t, r0, c0, job.rows, job.cols);
}

}  // namespace octet::cuda
