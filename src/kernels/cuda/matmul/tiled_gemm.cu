// The product of tiled.cuh, with its addend.
#include "kernels/cuda/matmul/tiled.cuh"

namespace octet::cuda {
namespace {

using namespace tiled;

__global__ __launch_bounds__(kThreads) void tiled_gemm_kernel(const TiledGemm g) {
  const int64_t row = int64_t{blockIdx.y} * kTile, col = int64_t{blockIdx.x} * kTile;
  const int x = threadIdx.x % kAcross, y = threadIdx.x / kAcross;
  float sum[kPerThread][kPerThread] = {};
  add_tiles(g.a, row, g.m, 0, g.b, col, g.n, 0, g.k, sum);
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
