// 64 x 64 results a block, 4 x 4 a thread, 16 of K at a time through shared memory. Types are looked up where elements
// are loaded: one instance for every mixture.
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/matmul/launchers.h"

namespace octet::cuda {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kPerThread = 4, kAcross = kTile / kPerThread;

__device__ float load_any(const Operand& x, int64_t index) {
  const auto* codes = static_cast<const int8_t*>(x.data);
  if (x.dtype == DType::kI8) return codes[index];
  // Two's complement, the even index in the low nibble.
  if (x.dtype == DType::kI4) return static_cast<int8_t>(codes[index / 2] << (index % 2 == 0 ? 4 : 0)) >> 4;
  return load(x, index);
}

// tile[kk][o] = element (outer + o, k + kk), 0 beyond the matrix.
__device__ void load_tile(const TiledOperand& x, int64_t outer, int64_t outer_size, int64_t k, int64_t k_size,
                          float (&tile)[kDepth][kTile + 1]) {
  const bool k_inner = x.k_stride == 1;
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const int o = k_inner ? i / kDepth : i % kTile, kk = k_inner ? i % kDepth : i / kTile;
    const int64_t r = outer + o, c = k + kk;
    float value = 0;
    if (r < outer_size && c < k_size) {
      value = load_any(x.operand, r * x.outer_stride + c * x.k_stride);
      const int64_t group = r / x.outer_group * x.scale_outer + c / x.k_group * x.scale_k;
      if (x.zero != nullptr) value -= x.zero[group];
      if (x.scale != nullptr) value *= x.scale[group];
    }
    tile[kk][o] = value;
  }
}

__global__ __launch_bounds__(kThreads) void tiled_gemm_kernel(const TiledGemm g) {
  __shared__ float a_tile[kDepth][kTile + 1], b_tile[kDepth][kTile + 1];
  const int64_t row = int64_t{blockIdx.y} * kTile, col = int64_t{blockIdx.x} * kTile;
  const int x = threadIdx.x % kAcross, y = threadIdx.x / kAcross;
  float sum[kPerThread][kPerThread] = {};
  for (int64_t k = 0; k < g.k; k += kDepth) {
    load_tile(g.a, row, g.m, k, g.k, a_tile);
    load_tile(g.b, col, g.n, k, g.k, b_tile);
    __syncthreads();
    unroll<kDepth, kPerThread, kPerThread>([&](int kk, int i, int j) {
      sum[i][j] = fmaf(a_tile[kk][y + i * kAcross], b_tile[kk][x + j * kAcross], sum[i][j]);
    });
    __syncthreads();
  }
  unroll<kPerThread, kPerThread>([&](int i, int j) {
    const int64_t r = row + y + i * kAcross, c = col + x + j * kAcross;
    if (r >= g.m || c >= g.n) return;
    const int64_t at = r * g.n + c;
    const float addend = g.c.data == nullptr ? 0.0f : load(g.c, g.c_is_row ? c : at);
    store(g.out, at, sum[i][j] + addend);
  });
}

}  // namespace

void launch_tiled_gemm(const TiledGemm& gemm, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((gemm.n + kTile - 1) / kTile),
                  static_cast<unsigned>((gemm.m + kTile - 1) / kTile));
  tiled_gemm_kernel<<<grid, kThreads, 0, stream>>>(gemm);
}

}  // namespace octet::cuda
