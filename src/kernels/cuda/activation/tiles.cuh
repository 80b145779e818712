// The schedule of tiles (common/quantize_tile.cuh): a producer fills a thread's part, then codes, amaxes and column
// sums are made of what is in registers.
//
//   struct Producer {
//     static constexpr int kMatrices = 1;  // that it makes; a CTA makes one tile of matrix `which`
//     static constexpr int kBlocks = 3;    // an SM
//     __device__ void make(TilePart<bf16>& part, const Spot& spot, int which) const;  // 0 beyond the edges
//   };
//
// CTAs of the same tile of two matrices are neighbours: what both read comes from L2.
#pragma once

#include "kernels/cuda/activation/activation.h"
#include "kernels/cuda/common/column_sums.cuh"
#include "kernels/cuda/common/overlap.cuh"

namespace octet::cuda {

struct Spot {
  int64_t rows, cols, r0, c0;  // of the matrix; where the tile begins
  __device__ __forceinline__ int64_t row() const { return r0 + TilePart<bf16>::row(); }
  __device__ __forceinline__ int64_t col() const { return c0 + TilePart<bf16>::col(); }
  __device__ __forceinline__ bool holds(int i) const { return row() + i < rows && col() < cols; }
};

// Row i of a thread's part: 16 elements, 0 beyond the edges.
using Run = Packed<bf16, kPartCols>;
__device__ __forceinline__ Run load_run(int i, const bf16* x, const Spot& spot) {
  uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
  if (spot.holds(i)) {
    const auto* from = reinterpret_cast<const uint4*>(x + (spot.row() + i) * spot.cols + spot.col());
    low = from[0], high = from[1];
  }
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}
__device__ __forceinline__ void store_run(const Run& run, int i, bf16* y, const Spot& spot) {
  if (y == nullptr || !spot.holds(i)) return;
  auto* to = reinterpret_cast<uint4*>(y + (spot.row() + i) * spot.cols + spot.col());
  to[0] = {run.words[0], run.words[1], run.words[2], run.words[3]};
  to[1] = {run.words[4], run.words[5], run.words[6], run.words[7]};
}
__device__ __forceinline__ void set_run(TilePart<bf16>& part, int i, const Run& run) {
  unroll<Run::kWords>([&](int w) { part.at[i][w] = run.words[w]; });
}

// TileEnd as a kernel takes it.
struct EndJob {
  QuantizeJob job;
  float* partial;         // [partial_rows, cols], or null
  uint32_t* tile_amaxes;  // [tiles], or null: then the amax is raised
};

struct NoCodes {};

template <Grouping kGrouping, typename Code>
__device__ __forceinline__ void end_tile(const TilePart<bf16>& part, const Spot& spot, const EndJob& end,
                                         TileScratch& scratch) {
  if (end.partial != nullptr) {
    float held[kPartCols];
    unroll<kPartCols>([&](int k) {
      held[k] = 0.0f;
      unroll<kPartRows>([&](int i) { held[k] = SumOf::join(held[k], part.value(i, k)); });
    });
    join_columns<SumOf>(held, reinterpret_cast<float*>(scratch.codes_t),
                        end.partial + 2 * (spot.r0 / kTile) * spot.cols + spot.c0, spot.cols, spot.cols - spot.c0);
    __syncthreads();
  }
  if constexpr (std::is_same_v<Code, NoCodes>) {
    if (end.job.amax == nullptr) return;
    using M = Magnitudes<bf16>;
    uint32_t most = 0;
    unroll<kPartRows>([&](int i) {
#pragma unroll
      for (uint32_t word : part.at[i]) most = M::max(most, word & M::kMask);
    });
    if (end.tile_amaxes == nullptr) return block_amax(M::bits(most), end.job.amax);
    most = block_max(M::bits(most), scratch.amax);
    if (threadIdx.x == 0) {
      const int64_t across = (spot.cols + kTile - 1) / kTile;
      end.tile_amaxes[spot.r0 / kTile * across + spot.c0 / kTile] = most;
    }
  } else {
    quantize_tile<kGrouping, Code, true>(part, spot.r0, spot.c0, end.job, scratch);
  }
}

template <Grouping kGrouping, typename Code, typename Producer>
__global__ void __launch_bounds__(kTileThreads, Producer::kBlocks)
    tiles_kernel(const __grid_constant__ Producer producer, const __grid_constant__ EndJob first,
                 const __grid_constant__ EndJob second) {
  __shared__ TileScratch scratch;
  griddep_wait();
  griddep_launch_dependents();
  const int which = Producer::kMatrices == 2 ? static_cast<int>(blockIdx.x % 2) : 0;
  const EndJob& end = which == 0 ? first : second;
  const int64_t rows = first.job.rows, cols = first.job.cols;
  const unsigned tile = blockIdx.x / Producer::kMatrices, across = static_cast<unsigned>((cols + kTile - 1) / kTile);
  const Spot spot{rows, cols, int64_t{tile / across} * kTile, int64_t{tile % across} * kTile};
  TilePart<bf16> part;
  producer.make(part, spot, which);
  end_tile<kGrouping, Code>(part, spot, end, scratch);
}

template <typename Code>
EndJob prepare(const TileEnd& end, cudaStream_t stream) {
  EndJob job{end.job, nullptr, nullptr};
  job.job.vector = true;
  if (end.column_sums != nullptr) job.partial = end.scratch;
  if (end.job.amax == nullptr) return job;
  if (std::is_same_v<Code, NoCodes> && end.column_sums != nullptr) {
    job.tile_amaxes = reinterpret_cast<uint32_t*>(end.scratch + partial_rows(end.job.rows) * end.job.cols);
  } else {
    cudaMemsetAsync(end.job.amax, 0, sizeof(float), stream);
  }
  return job;
}

template <Grouping kGrouping, typename Code, typename Producer>
void launch_tiles(const Producer& producer, const TileEnd& first, const TileEnd& second, cudaStream_t stream) {
  const int64_t rows = first.job.rows, cols = first.job.cols, tiles = tiles_of(rows) * tiles_of(cols);
  const EndJob one = prepare<Code>(first, stream), two = prepare<Code>(second, stream);
  const auto blocks = static_cast<unsigned>(Producer::kMatrices * tiles);
  launch_overlapped(tiles_kernel<kGrouping, Code, Producer>, {blocks, kTileThreads}, stream, producer, one, two);
  if (first.column_sums == nullptr) return;
  launch_finish_rows<SumOf>(first.scratch, first.column_sums, rows, cols, stream,
                            {one.tile_amaxes, tiles, first.job.amax});
}

// Of the groupings and formats of takes_codes.
template <bool kGradient, typename Producer>
void launch_code_tiles(const Producer& producer, const TileEnd& first, const TileEnd& second, cudaStream_t stream) {
  if (first.grouping == Grouping::kTensor) {
    launch_tiles<Grouping::kTensor, std::conditional_t<kGradient, e5m2, e4m3>>(producer, first, second, stream);
  } else {
    launch_tiles<Grouping::kRow128, e4m3>(producer, first, second, stream);
  }
}

}  // namespace octet::cuda
