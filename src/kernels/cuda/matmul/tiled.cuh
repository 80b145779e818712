// 64 x 64 results a block, 4 x 4 a thread, 16 of K at a time through shared memory. Types are looked up where elements
// are loaded: one instance for every mixture.
#pragma once

#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/matmul/launchers.h"

namespace octet::cuda::tiled {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kPerThread = 4, kAcross = kTile / kPerThread;

__device__ inline float load_any(const Operand& x, int64_t index) {
  const auto* codes = static_cast<const int8_t*>(x.data);
  if (x.dtype == DType::kI8) return codes[index];
  // Two's complement, the even index in the low nibble.
  if (x.dtype == DType::kI4) return static_cast<int8_t>(codes[index / 2] << (index % 2 == 0 ? 4 : 0)) >> 4;
  return load(x, index);
}

// tile[kk][o] = element (outer + o, k + kk), 0 from outer_end and k_end on.
__device__ inline void load_tile(const TiledOperand& x, int64_t outer, int64_t outer_end, int64_t k, int64_t k_end,
                                 float (&tile)[kDepth][kTile + 1]) {
  const bool k_inner = x.k_stride == 1;
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const int o = k_inner ? i / kDepth : i % kTile, kk = k_inner ? i % kDepth : i / kTile;
    const int64_t r = outer + o, c = k + kk;
    float value = 0;
    if (r < outer_end && c < k_end) {
      value = load_any(x.operand, r * x.outer_stride + c * x.k_stride);
      const int64_t group = r / x.outer_group * x.scale_outer + c / x.k_group * x.scale_k;
      if (x.zero != nullptr) value -= x.zero[group];
      if (x.scale != nullptr) value *= x.scale[group];
    }
    tile[kk][o] = value;
  }
}

// sum[i][j] += a[k][y + 16 i] b[k][x + 16 j] for k in [k, k_end) of rows from `row` and columns from `col` on.
__device__ inline void add_tiles(const TiledOperand& a, int64_t row, int64_t row_end, int64_t a_k,
                                 const TiledOperand& b, int64_t col, int64_t col_end, int64_t b_k, int64_t depth,
                                 float (&sum)[kPerThread][kPerThread]) {
  __shared__ float a_tile[kDepth][kTile + 1], b_tile[kDepth][kTile + 1];
  const int x = threadIdx.x % kAcross, y = threadIdx.x / kAcross;
  for (int64_t k = 0; k < depth; k += kDepth) {
    load_tile(a, row, row_end, a_k + k, a_k + depth, a_tile);
    load_tile(b, col, col_end, b_k + k, b_k + depth, b_tile);
    __syncthreads();
    unroll<kDepth, kPerThread, kPerThread>([&](int kk, int i, int j) {
      sum[i][j] = fmaf(a_tile[kk][y + i * kAcross], b_tile[kk][x + j * kAcross], sum[i][j]);
    });
    __syncthreads();
  }
}

}  // namespace octet::cuda::tiled
