// Tiles of 128 x 128 elements, one a block of 256 threads: thread t has rows 8 (t / 16) .. + 7 and columns 8 (t mod 16)
// .. + 7, so that half a warp reads 16 bytes a thread of one row. Sums over rows of a matrix always go by these tiles:
// 8 rows in order, two threads, 8 warps in order, then the tiles (finish_rows), so that a bias gradient made by a fusion
// has the bits of the reduce node it replaces.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/pointwise.cuh"

namespace octet::cuda {

inline constexpr int kTileSide = 128, kTileThreads = 256, kTileRun = 8;  // kTileRun: rows, and columns, of a thread

inline int64_t tiles_of(int64_t n) { return (n + kTileSide - 1) / kTileSide; }

// How elements join: identity, what an element contributes, and the joining of two.
struct SumOf {
  static constexpr float kIdentity = 0.0f;
  static __device__ __forceinline__ float element(float x) { return x; }
  static __device__ __forceinline__ float join(float a, float b) { return a + b; }
};
struct MaxOf {
  static constexpr float kIdentity = -INFINITY;
  static __device__ __forceinline__ float element(float x) { return x; }
  static __device__ __forceinline__ float join(float a, float b) { return max_or_nan(a, b); }
};
struct AmaxOf {
  static constexpr float kIdentity = 0.0f;
  static __device__ __forceinline__ float element(float x) { return fabsf(x); }
  static __device__ __forceinline__ float join(float a, float b) { return max_or_nan(a, b); }
};

// What threads hold of their 8 columns becomes the tile's row of `partial` [row tiles, cols]. A block's call begins with
// writes to `scratch` (8 x 128 floats of shared memory), holds one barrier, and ends with reads of it.
template <typename Kind>
__device__ __forceinline__ void join_columns(float (&held)[kTileRun], float (*scratch)[kTileSide], float* partial_row,
                                             int64_t cols_left) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
#pragma unroll
  for (int k = 0; k < kTileRun; ++k)
    held[k] = Kind::join(held[k], __shfl_xor_sync(kWholeWarp, held[k], 16));
  if (lane < 16) {
    *reinterpret_cast<float4*>(&scratch[warp][lane * kTileRun]) = {held[0], held[1], held[2], held[3]};
    *reinterpret_cast<float4*>(&scratch[warp][lane * kTileRun + 4]) = {held[4], held[5], held[6], held[7]};
  }
  __syncthreads();
  const int col = static_cast<int>(threadIdx.x);
  if (col < kTileSide && col < cols_left) {
    float sum = scratch[0][col];
#pragma unroll
    for (int w = 1; w < kTileThreads / 32; ++w) sum = Kind::join(sum, scratch[w][col]);
    partial_row[col] = sum;
  }
}

// y [cols] from partial [tiles, cols]: 8 groups of tiles side by side, then the groups in order.
template <typename Kind>
__global__ void __launch_bounds__(256)
    finish_rows_kernel(const float* partial, float* y, int64_t tiles, int64_t cols) {
  __shared__ float scratch[8][33];
  const int lane = static_cast<int>(threadIdx.x) & 31, group = static_cast<int>(threadIdx.x) >> 5;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  float held = Kind::kIdentity;
  if (col < cols) {
#pragma unroll 8
    for (int64_t t = group; t < tiles; t += 8) held = Kind::join(held, partial[t * cols + col]);
  }
  scratch[group][lane] = held;
  __syncthreads();
  if (group != 0 || col >= cols) return;
#pragma unroll
  for (int g = 1; g < 8; ++g) held = Kind::join(held, scratch[g][lane]);
  y[col] = held;
}

template <typename Kind>
void launch_finish_rows(const float* partial, float* y, int64_t tiles, int64_t cols, cudaStream_t stream) {
  finish_rows_kernel<Kind><<<static_cast<unsigned>((cols + 31) / 32), 256, 0, stream>>>(partial, y, tiles, cols);
}

}  // namespace octet::cuda
