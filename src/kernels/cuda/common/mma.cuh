// Tensor-core pieces, of attention above all: swizzled tiles in shared memory, fragments, products of 16 x 8 x 16.
//
// A tile has rows of kDim elements, cut in pieces of 16 bytes; piece c of row r lies at c ^ (r % 8), so that the eight
// rows of a fragment take different banks. A warp owns parts of 16 rows; in sums of products lane l holds, of every 8
// columns, columns 2 (l % 4) and the next of row l / 4 (elements 0, 1) and of row l / 4 + 8 (elements 2, 3).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/operand.h"

namespace octet::cuda::mma {

__device__ __forceinline__ void copy16_async(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(exists ? 16 : 0));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

template <int kDim>
__device__ __forceinline__ uint32_t piece_offset(int row, int piece) {
  return static_cast<uint32_t>(row * kDim * 2 + ((piece ^ (row & 7)) << 4));
}

// From the address of piece 0 or 1 of a row, the one an even number of pieces further. Tiles begin at multiples of the
// bytes of their rows, so one exclusive or does it: without, registers hold the address of every piece, and spill.
__device__ __forceinline__ uint32_t further(uint32_t address, int pieces) {
  return address ^ static_cast<uint32_t>(pieces << 4);
}

// tile[row] = x[first + row][head] of x [tokens, heads, dim], zeros beyond the tokens and beyond dim, a multiple of 8.
template <int kDim, int kRows, int kThreads>
__device__ __forceinline__ void load_tile_async(bf16* tile, const Operand& x, int first, int tokens, int heads,
                                                int head, int dim) {
  constexpr int kPieces = kDim / 8;
  static_assert(kRows * kPieces % kThreads == 0);
  const uint32_t base = shared_address(tile);
  const auto* data = static_cast<const bf16*>(x.data);
  unroll<kRows * kPieces / kThreads>([&](int n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x);
    const int row = i / kPieces, piece = i % kPieces, from = first + row < tokens ? first + row : -1;
    const bool exists = from >= 0 && piece * 8 < dim;
    const bf16* source = exists ? data + (static_cast<int64_t>(from) * heads + head) * dim + piece * 8 : data;
    copy16_async(base + piece_offset<kDim>(row, piece), source, exists);
  });
}

__device__ __forceinline__ void load_fragments(uint32_t address, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}
__device__ __forceinline__ void load_fragments_transposed(uint32_t address, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}
// What instructions call an element type: bf16, or f16.
template <typename T>
inline constexpr char kTypeName[] = "bf16";
template <>
inline constexpr char kTypeName<f16>[] = "f16";

template <typename T = bf16>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.%10.%10.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "C"(kTypeName<T>));
}
template <typename T = bf16>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// The 16 x 16 fragment of rows [first_row, first_row + 16), elements [16 k, 16 k + 16) as the left operand.
template <int kDim>
__device__ __forceinline__ void left_fragment(const bf16* tile, int first_row, int k, uint32_t (&to)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_fragments(further(shared_address(tile) + piece_offset<kDim>(first_row + lane % 16, lane / 16), 2 * k), to);
}

// products[m][n] += left rows of part m . rows [8 n, 8 n + 8) of `right`, over kDim elements; left(m, k, fragment)
// gives the left operand. Fragments of the right side serve all kParts of 16 rows.
template <int kDim, int kRows, int kParts, typename Left>
__device__ __forceinline__ void multiply_rows(float (&products)[kParts][kRows / 8][4], const bf16* right, Left left) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
  const uint32_t base = shared_address(right) + piece_offset<kDim>(row, half);
  unroll<kDim / 16>([&](int k) {
    uint32_t a[kParts][4];
    unroll<kParts>([&](int m) { left(m, k, a[m]); });
#pragma unroll
    for (int n = 0; n < kRows / 8; n += 2) {
      uint32_t b[4];
      load_fragments(further(base, 2 * k) + 8 * n * kDim * 2, b);
      unroll<kParts>([&](int m) {
        multiply_add(products[m][n], a[m], b[0], b[1]);
        multiply_add(products[m][n + 1], a[m], b[2], b[3]);
      });
    }
  });
}

// sums[m][n] += weights of part m . columns [8 n, 8 n + 8) of `right`, over its kRows rows; weights are sums of
// products, as bf16.
template <int kDim, int kRows, int kParts>
__device__ __forceinline__ void add_weighted_rows(float (&sums)[kParts][kDim / 8][4],
                                                  const float (&weights)[kParts][kRows / 8][4], const bf16* right) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t base = shared_address(right) + piece_offset<kDim>(lane % 16, lane / 16);
  unroll<kRows / 16>([&](int k) {
    uint32_t a[kParts][4];
    unroll<kParts, 4>([&](int m, int i) {
      const float(&w)[4] = weights[m][2 * k + i / 2];
      a[m][i] = pack(w[i % 2 * 2], w[i % 2 * 2 + 1]);
    });
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t b[4];
      load_fragments_transposed(further(base, n) + 16 * k * kDim * 2, b);
      unroll<kParts>([&](int m) {
        multiply_add(sums[m][n], a[m], b[0], b[1]);
        multiply_add(sums[m][n + 1], a[m], b[2], b[3]);
      });
    }
  });
}

// Of the four lanes that share rows.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// --- what attention over a cache multiplies: bf16; of FP8 codes f16, of int8 codes bf16, both exact.
template <typename T>
using Factor = std::conditional_t<std::is_same_v<T, e4m3> || std::is_same_v<T, e5m2>, f16, bf16>;
// Two codes in the low half of `codes` as factors.
template <typename T>
__device__ __forceinline__ uint32_t halves(uint32_t codes) {
  if constexpr (std::is_same_v<T, int8_t>) {
    // Bits of 128 + the low seven of the code, less 128 or, where its sign is set, 256.
    const uint32_t words = __byte_perm(codes, 0x43, 0x4140), low = words & 0xff7fff7fu, sign = words & 0xff80ff80u;
    const __nv_bfloat162 pair =
        __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&low), *reinterpret_cast<const __nv_bfloat162*>(&sign));
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes),
                                                        std::is_same_v<T, e4m3> ? __NV_E4M3 : __NV_E5M2);
    return static_cast<uint32_t>(pair.x) | static_cast<uint32_t>(pair.y) << 16;
  }
}
// bf16 as factors of codes T; beyond the range of f16 the largest number.
template <typename T>
__device__ __forceinline__ uint32_t halves_of_bf16(uint32_t pair) {
  if constexpr (std::is_same_v<Factor<T>, bf16>) return pair;
  const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
  return pack<f16>(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
}

}  // namespace octet::cuda::mma
