// Sums and maxima over the rows of a matrix, by the tiles of quantize_tile.cuh: a thread's 4 rows in order, the 4
// threads of a warp, 8 warps in order, then the tiles (launch_finish_rows). Always in this order, so that a bias
// gradient made by a fusion that walks tiles has the bits of the reduce node it replaces.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"

namespace octet::cuda {

inline int64_t tiles_of(int64_t n) { return (n + kTile - 1) / kTile; }

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

// What threads hold of their 16 columns becomes the tile's row of `partial` [row tiles, cols]. A block's call begins
// with writes to `scratch` [8][128], holds one barrier, and ends with reads of it.
template <typename Kind>
__device__ __forceinline__ void join_columns(float (&held)[kPartCols], float* scratch, float* partial_row,
                                             int64_t cols_left) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
#pragma unroll
  for (float& x : held) {
    x = Kind::join(x, __shfl_xor_sync(kWholeWarp, x, 8));
    x = Kind::join(x, __shfl_xor_sync(kWholeWarp, x, 16));
  }
  if (lane < 8) {
#pragma unroll
    for (int k = 0; k < kPartCols; k += 4)
      *reinterpret_cast<float4*>(scratch + warp * kTile + lane * kPartCols + k) = {held[k], held[k + 1], held[k + 2],
                                                                                   held[k + 3]};
  }
  __syncthreads();
  const int col = static_cast<int>(threadIdx.x);
  if (col < kTile && col < cols_left) {
    float sum = scratch[col];
#pragma unroll
    for (int w = 1; w < kTileThreads / 32; ++w) sum = Kind::join(sum, scratch[w * kTile + col]);
    partial_row[col] = sum;
  }
}

// y [cols] from partial [tiles, cols]: 8 groups of tiles side by side, then the groups in order.
template <typename Kind>
__global__ void __launch_bounds__(256) finish_rows_kernel(const float* partial, float* y, int64_t tiles, int64_t cols) {
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
