// Grouped products for all that the fast kernels refuse, and weight gradients: the tiles of tiled.cuh, by expert.
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/matmul/tiled.cuh"

namespace octet::cuda {
namespace {

using namespace tiled;

// Rows [begin, end) of one expert from the row of a tile on; no expert: beyond the last.
struct RowTile {
  int expert = -1;
  int64_t begin = 0, end = 0;

  __device__ RowTile(const int32_t* offsets, int experts, int64_t tile) {
    for (int e = 0; e < experts; ++e) {
      const int64_t first = offsets[e], last = offsets[e + 1], tiles = (last - first + kTile - 1) / kTile;
      if (tile < tiles) {
        expert = e, begin = first + tile * kTile, end = last;
        return;
      }
      tile -= tiles;
    }
  }
};

// Row tiles of all experts, one after the other.
__global__ __launch_bounds__(kThreads) void grouped_rows_tiled_kernel(const GroupedGemm grouped) {
  const TiledGemm& g = grouped.gemm;
  const RowTile tile(grouped.offsets, grouped.experts, blockIdx.y);
  if (tile.expert < 0) return;
  const int64_t col = int64_t{blockIdx.x} * kTile, first = tile.expert * grouped.b_outer;
  const int x = threadIdx.x % kAcross, y = threadIdx.x / kAcross;
  float sum[kPerThread][kPerThread] = {};
  add_tiles(g.a, tile.begin, tile.end, 0, g.b, first + col, first + g.n, tile.expert * grouped.b_depth, g.k, sum);
  unroll<kPerThread, kPerThread>([&](int i, int j) {
    const int64_t r = tile.begin + y + i * kAcross, c = col + x + j * kAcross;
    if (r < tile.end && c < g.n) store(g.out, r * g.n + c, sum[i][j]);
  });
}

// An expert's rows are what is summed over: none leave c, or 0.
__global__ __launch_bounds__(kThreads) void grouped_wgrad_tiled_kernel(const GroupedGemm grouped) {
  const TiledGemm& g = grouped.gemm;
  const int expert = static_cast<int>(blockIdx.z);
  const int64_t begin = grouped.offsets[expert], depth = grouped.offsets[expert + 1] - begin;
  const int64_t row = int64_t{blockIdx.y} * kTile, col = int64_t{blockIdx.x} * kTile;
  const int x = threadIdx.x % kAcross, y = threadIdx.x / kAcross;
  float sum[kPerThread][kPerThread] = {};
  add_tiles(g.a, row, g.m, begin, g.b, col, g.n, begin, depth, sum);
  unroll<kPerThread, kPerThread>([&](int i, int j) {
    const int64_t r = row + y + i * kAcross, c = col + x + j * kAcross;
    if (r >= g.m || c >= g.n) return;
    const int64_t at = (expert * g.m + r) * g.n + c;
    store(g.out, at, sum[i][j] + (g.c.data == nullptr ? 0.0f : load(g.c, at)));
  });
}

unsigned tiles(int64_t size) { return static_cast<unsigned>((size + kTile - 1) / kTile); }

}  // namespace

void launch_grouped_tiled(const GroupedGemm& grouped, cudaStream_t stream) {
  const TiledGemm& g = grouped.gemm;
  if (grouped.by_depth) {
    const dim3 grid(tiles(g.n), tiles(g.m), static_cast<unsigned>(grouped.experts));
    grouped_wgrad_tiled_kernel<<<grid, kThreads, 0, stream>>>(grouped);
  } else {  // as many row tiles as any split of the rows can have
    const int64_t parts = g.m < grouped.experts ? g.m : grouped.experts;
    const dim3 grid(tiles(g.n), static_cast<unsigned>(g.m / kTile + parts));
    grouped_rows_tiled_kernel<<<grid, kThreads, 0, stream>>>(grouped);
  }
}

}  // namespace octet::cuda
