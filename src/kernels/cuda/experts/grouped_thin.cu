// Grouped products of adapters in bf16, sums in float32: x [R, K] by A [E N, K]^T of few columns N, and h [R, K] by
// B [E N, K]^T where K, a rank, is all there is to contract, with the base's rows added. Tiles of 128 columns would
// leave most of the device idle in the first and multiply zeros in the second.
//
// Fragments come from memory as pieces that lie there whole: the contracted elements are the same permutation of theirs
// on both sides, and the columns of B are dealt so that a lane's sums are eight neighbours.
#include <cooperative_groups.h>

#include "kernels/cuda/common/grouped_rows.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/experts/experts.h"

namespace octet::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kTileRows = 16, kChunk = 32;
constexpr int kMostSplits = 8;             // blocks of a cluster, each with parts of K
constexpr int kWideColumns = kWarps * 32;  // of a block

using Rows = GroupedRows<kTileRows>;

// Row lane / 4 of the tile and the one eight below; where the tile has fewer, its last.
__device__ __forceinline__ int64_t tile_row(const GroupedTile& tile, int row) {
  return tile.row + min(row, tile.rows - 1);
}

// y [rows, n] of a tile by kEights * 8 columns. Warps, and the blocks of a cluster, take chunks of K in turn; their
// sums are added in order.
template <int kEights>
__global__ void __launch_bounds__(kThreads) narrow_kernel(ThinProduct p) {
  __shared__ float parts[kWarps][kTileRows * kEights * 8];
  if (!p.operands_ready) griddep_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const GroupedTile tile = Rows::find(p.offsets, p.experts, static_cast<int>(blockIdx.y), lane);
  if (p.operands_ready) griddep_wait();
  griddep_launch_dependents();
  if (tile.rows == 0) return;  // the whole cluster
  const int n = static_cast<int>(p.n), first = static_cast<int>(blockIdx.z) * kEights * 8, quad = lane % 4;
  const auto* x = static_cast<const bf16*>(p.x);
  const bf16 *upper = x + tile_row(tile, lane / 4) * p.x_stride, *lower = x + tile_row(tile, lane / 4 + 8) * p.x_stride;
  const bf16* columns[kEights];
  unroll<kEights>([&](int j) {
    const int column = min(first + 8 * j + lane / 4, n - 1);
    columns[j] = static_cast<const bf16*>(p.w) + (static_cast<int64_t>(tile.expert) * n + column) * p.k;
  });
  float sums[kEights][4] = {};
  const int step = kChunk * kWarps * static_cast<int>(gridDim.x);
#pragma unroll 2
  for (int64_t k = kChunk * (static_cast<int>(blockIdx.x) * kWarps + warp) + 8 * quad; k - 8 * quad < p.k; k += step) {
    const bool exists = k < p.k;
    const auto piece = [&](const bf16* row) {
      return exists ? *reinterpret_cast<const uint4*>(row + k) : uint4{0, 0, 0, 0};
    };
    const uint4 a = piece(upper), c = piece(lower);
    uint4 b[kEights];
    unroll<kEights>([&](int j) { b[j] = piece(columns[j]); });
    const uint32_t even[4] = {a.x, c.x, a.y, c.y}, odd[4] = {a.z, c.z, a.w, c.w};
    unroll<kEights>([&](int j) {
      mma::multiply_add(sums[j], even, b[j].x, b[j].y);
      mma::multiply_add(sums[j], odd, b[j].z, b[j].w);
    });
  }
  constexpr int kColumns = kEights * 8, kSums = kTileRows * kColumns;
  unroll<kEights>([&](int j) {
    const int at = lane / 4 * kColumns + 8 * j + 2 * quad;
    *reinterpret_cast<float2*>(&parts[warp][at]) = {sums[j][0], sums[j][1]};
    *reinterpret_cast<float2*>(&parts[warp][at + 8 * kColumns]) = {sums[j][2], sums[j][3]};
  });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSums; i += kThreads) {
    float sum = parts[0][i];
    unroll<kWarps - 1>([&](int w) { sum += parts[w + 1][i]; });
    parts[0][i] = sum;
  }
  const auto cluster = cooperative_groups::this_cluster();
  const int blocks = static_cast<int>(gridDim.x);
  blocks > 1 ? cluster.sync() : __syncthreads();
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < kSums;
       i += blocks * kThreads) {
    float sum = 0;
    for (int block = 0; block < blocks; ++block)
      sum += blocks > 1 ? *cluster.map_shared_rank(&parts[0][i], block) : parts[0][i];
    const int row = i / kColumns, column = first + i % kColumns;
    if (row < tile.rows && column < n)
      static_cast<bf16*>(p.out)[(tile.row + row) * p.n + column] = from_float<bf16>(sum);
  }
  if (blocks > 1) cluster.sync();  // no block ends whose sums are still read
}

// kRank elements of a row as fragments: lane % 4 has a quarter of them, whole.
template <int kRank>
struct RowPieces {
  static constexpr int kSteps = (kRank + 15) / 16;
  uint32_t at[2 * kSteps] = {};

  __device__ __forceinline__ explicit RowPieces(const bf16* row) {
    constexpr int kWords = kRank / 8;
    const auto* from = reinterpret_cast<const uint32_t*>(row + static_cast<int>(threadIdx.x) % 4 * (kRank / 4));
    if constexpr (kWords == 1) {
      at[0] = from[0];
    } else if constexpr (kWords == 2) {
      const uint2 piece = *reinterpret_cast<const uint2*>(from);
      at[0] = piece.x, at[1] = piece.y;
    } else {
      unroll<kWords / 4>([&](int i) {
        const uint4 piece = reinterpret_cast<const uint4*>(from)[i];
        at[4 * i] = piece.x, at[4 * i + 1] = piece.y, at[4 * i + 2] = piece.z, at[4 * i + 3] = piece.w;
      });
    }
  }
};

// y = base + (h B^T as bf16), of a tile by 256 columns, 32 a warp: of lane % 4 columns 8 (lane % 4) to the next eight.
template <int kRank>
__global__ void __launch_bounds__(kThreads) wide_kernel(ThinProduct p) {
  if (!p.operands_ready) griddep_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  const GroupedTile tile = Rows::find(p.offsets, p.experts, static_cast<int>(blockIdx.y), lane);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWideColumns + warp * 32;
  if (tile.rows == 0 || first >= p.n) {
    if (p.operands_ready) griddep_wait();
    return griddep_launch_dependents();
  }
  const bf16* w = static_cast<const bf16*>(p.w) + static_cast<int64_t>(tile.expert) * p.n * kRank;
  const auto column = [&](int j) { return w + min(first + lane / 8 * 8 + 2 * j + lane / 4 % 2, p.n - 1) * kRank; };
  const RowPieces<kRank> b[4] = {RowPieces<kRank>(column(0)), RowPieces<kRank>(column(1)), RowPieces<kRank>(column(2)),
                                 RowPieces<kRank>(column(3))};
  if (p.operands_ready) griddep_wait();
  griddep_launch_dependents();
  const auto* h = static_cast<const bf16*>(p.x);
  const RowPieces<kRank> upper(h + tile_row(tile, lane / 4) * p.x_stride),
      lower(h + tile_row(tile, lane / 4 + 8) * p.x_stride);
  const int64_t at = tile.row * p.n + first + 8 * quad;
  const auto exists = [&](int row) { return row < tile.rows && first + 8 * quad < p.n; };
  float base[2][8] = {};  // on their way while the product is made
  unroll<2>([&](int half) {
    const int row = lane / 4 + 8 * half;
    if (p.base != nullptr && exists(row)) load<8>(static_cast<const bf16*>(p.base) + at + row * p.n, base[half]);
  });
  float sums[4][4] = {};
  unroll<RowPieces<kRank>::kSteps>([&](int s) {
    const uint32_t a[4] = {upper.at[2 * s], lower.at[2 * s], upper.at[2 * s + 1], lower.at[2 * s + 1]};
    unroll<4>([&](int j) { mma::multiply_add(sums[j], a, b[j].at[2 * s], b[j].at[2 * s + 1]); });
  });
  unroll<2>([&](int half) {
    const int row = lane / 4 + 8 * half;
    if (!exists(row)) return;
    float values[8];
    unroll<8>([&](int i) {
      const float sum = sums[i / 2][2 * half + i % 2];
      values[i] = p.base != nullptr ? base[half][i] + to_float(from_float<bf16>(sum)) : sum;
    });
    store<8>(static_cast<bf16*>(p.out) + at + row * p.n, values);
  });
}

int64_t most_tiles(const ThinProduct& p) {
  return (p.rows + kTileRows - 1) / kTileRows + std::min<int64_t>(p.rows, p.experts);
}

template <int kEights>
void launch_narrow(const ThinProduct& p, int sm_count, cudaStream_t stream) {
  const int64_t columns = (p.n + kEights * 8 - 1) / (kEights * 8), tiles = (p.rows + kTileRows - 1) / kTileRows;
  int splits = 1;
  while (splits < kMostSplits && 2 * splits * tiles * columns <= 2 * sm_count && splits * kWarps * kChunk < p.k)
    splits *= 2;
  const Grid grid{
      .blocks = {static_cast<unsigned>(splits), static_cast<unsigned>(most_tiles(p)), static_cast<unsigned>(columns)},
      .threads = kThreads,
      .cluster = {static_cast<unsigned>(splits)}};
  launch_overlapped(narrow_kernel<kEights>, grid, stream, p);
}

template <int kRank>
void launch_wide(const ThinProduct& p, cudaStream_t stream) {
  const Grid grid{
      .blocks = {static_cast<unsigned>((p.n + kWideColumns - 1) / kWideColumns), static_cast<unsigned>(most_tiles(p))},
      .threads = kThreads};
  launch_overlapped(wide_kernel<kRank>, grid, stream, p);
}

}  // namespace

void launch_grouped_narrow(const ThinProduct& p, int sm_count, cudaStream_t stream) {
  if (p.rows == 0) return;
  const int64_t eights = (p.n + 7) / 8;
  if (eights <= 1) return launch_narrow<1>(p, sm_count, stream);
  if (eights <= 2) return launch_narrow<2>(p, sm_count, stream);
  if (eights <= 4) return launch_narrow<4>(p, sm_count, stream);
  if (eights % 6 == 0) return launch_narrow<6>(p, sm_count, stream);
  return launch_narrow<8>(p, sm_count, stream);
}

void launch_grouped_wide(const ThinProduct& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  switch (p.k) {
    case 8: return launch_wide<8>(p, stream);
    case 16: return launch_wide<16>(p, stream);
    case 32: return launch_wide<32>(p, stream);
    default: return launch_wide<64>(p, stream);
  }
}

}  // namespace octet::cuda
