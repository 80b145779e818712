// Sums and maxima over the rows of a matrix, by the tiles of quantize_tile.cuh: a thread's 4 rows in order, the 16
// threads of half a tile in order, then the halves of all tiles (launch_finish_rows). Always in this order, so that a
// bias gradient made by a fusion that walks tiles has the bits of the reduce node it replaces.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"

namespace octet::cuda {

inline int64_t tiles_of(int64_t n) { return (n + kTile - 1) / kTile; }
inline int64_t partial_rows(int64_t rows) { return 2 * tiles_of(rows); }  // of the matrix between the two stages

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

// What threads hold of their 16 columns becomes the two rows of `partial` [partial_rows, cols] that begin at `to`. A
// block's call begins with writes to `scratch` [32][128], holds one barrier, and ends with reads of it. A thread's four
// pieces of 16 bytes change places by column, so that a quarter of a warp writes to all banks.
template <typename Kind>
__device__ __forceinline__ void join_columns(const float (&held)[kPartCols], float* scratch, float* to, int64_t cols,
                                             int64_t cols_left) {
  const int thread = static_cast<int>(threadIdx.x), part = thread & 7;
  unroll<4>([&](int k) {
    *reinterpret_cast<float4*>(scratch + (thread >> 3) * kTile + part * kPartCols + ((k + (part >> 1)) & 3) * 4) = {
        held[4 * k], held[4 * k + 1], held[4 * k + 2], held[4 * k + 3]};
  });
  __syncthreads();
  const int col = thread & (kTile - 1), half = thread >> 7;
  if (col >= cols_left) return;
  const int place = (col & ~15) + ((((col >> 2) & 3) + (col >> 5)) & 3) * 4 + (col & 3);
  const float* from = scratch + half * 16 * kTile + place;
  float sum = from[0];
#pragma unroll
  for (int g = 1; g < 16; ++g) sum = Kind::join(sum, from[g * kTile]);
  to[half * cols + col] = sum;
}

// The amax of a matrix whose tiles left theirs, as bits, in `parts`; made by a block of launch_finish_rows.
struct TileAmaxes {
  const uint32_t* parts = nullptr;  // [count], null: nothing to do
  int64_t count = 0;
  float* amax = nullptr;
};

// y [cols] from partial [count, cols]: 8 groups of rows side by side, then the groups in order.
template <typename Kind>
__global__ void __launch_bounds__(256)
    finish_rows_kernel(const float* partial, float* y, int64_t count, int64_t cols, TileAmaxes amaxes) {
  __shared__ float scratch[8][33];
  griddep_wait();
  griddep_launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) & 31, group = static_cast<int>(threadIdx.x) >> 5;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  if (blockIdx.x * int64_t{32} >= cols) {
    uint32_t most = 0;
    for (int64_t i = threadIdx.x; i < amaxes.count; i += 256) most = max(most, amaxes.parts[i]);
    most = block_max(most, reinterpret_cast<uint32_t*>(scratch[0]));
    if (threadIdx.x == 0) *amaxes.amax = __uint_as_float(most);
    return;
  }
  float held = Kind::kIdentity;
  if (col < cols) {
#pragma unroll 8
    for (int64_t t = group; t < count; t += 8) held = Kind::join(held, partial[t * cols + col]);
  }
  scratch[group][lane] = held;
  __syncthreads();
  if (group != 0 || col >= cols) return;
#pragma unroll
  for (int g = 1; g < 8; ++g) held = Kind::join(held, scratch[g][lane]);
  y[col] = held;
}

template <typename Kind>
void launch_finish_rows(const float* partial, float* y, int64_t rows, int64_t cols, cudaStream_t stream,
                        const TileAmaxes& amaxes = {}) {
  const auto blocks = static_cast<unsigned>((cols + 31) / 32 + (amaxes.parts != nullptr ? 1 : 0));
  launch_overlapped(finish_rows_kernel<Kind>, {blocks, 256}, stream, partial, y, partial_rows(rows), cols, amaxes);
}

}  // namespace octet::cuda
