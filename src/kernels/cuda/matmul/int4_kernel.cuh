// Weights of 4 bits times x.
//
// A block makes 128 columns of y for kTokens rows: two warp groups multiply, 64 columns each; one thread of a warp
// copies tiles by TMA: codes and scales as they lie, x swizzled. Sums of a group of K are scaled into the sums of all.
// The blocks of a cluster share K; each joins a share of their sums, in order. Of a grouped product of few rows there
// are blocks for any split of the rows among the experts (grouped_rows.cuh): those beyond the last end. Blocks of many
// rows are persistent where they share nothing: a warp group stores its columns while the next tile arrives.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/common/grouped_rows.cuh"
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/matmul/int4_multiply.cuh"

namespace octet::cuda::int4 {

// Four neighbouring columns of y: where they go, and their bias.
struct Columns {
  int64_t col, width = 0, at = 0;  // of the part that they are of
  Operand out;
  float bias[4] = {};

  __device__ __forceinline__ Columns(const Int4Product& p, int64_t first) : col(first), out{nullptr, p.out_dtype} {
    for (int i = 0; i < p.part_count; ++i) {
      const GemvPart& part = p.parts[i];
      if (col >= part.begin && col < part.end)
        out.data = part.out, width = part.end - part.begin, at = col - part.begin;
    }
    if (p.bias != nullptr) load({const_cast<void*>(p.bias), p.bias_dtype}, col, bias);
  }
};
// What their sums of a row become.
struct RowTerms {
  float scale = 1, c[4] = {};

  __device__ __forceinline__ void read(const Int4Product& p, int64_t row, const Columns& columns) {
    if (p.x_scale != nullptr) scale = p.x_scale[p.x_scale_rows ? row : 0];
    if (p.c != nullptr) load({const_cast<void*>(p.c), p.out_dtype}, row * p.n + columns.col, c);
  }
  __device__ __forceinline__ void store(const Columns& columns, int64_t row, const float4& sum) const {
    float y[4] = {sum.x, sum.y, sum.z, sum.w};
    unroll<4>([&](int i) { y[i] = y[i] * scale + c[i] + columns.bias[i]; });
    if (columns.out.data != nullptr) octet::cuda::store(columns.out, row * columns.width + columns.at, y);
  }
};
__device__ __forceinline__ void add(float4& sum, const float4& other) {
  sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
}

// A warp group's sums of a tile become its 64 columns of rows [first, end) of y, by 64 rows, without the other group.
template <int kTokens>
__device__ __forceinline__ void store_alone(const Int4Product& p, const float (&sums)[kTokens / 2], float* staging,
                                            int first, int end, int column) {
  constexpr int kStride = 64 + 4, kAtOnce = 8;
  const int thread = static_cast<int>(threadIdx.x) % 128, side = static_cast<int>(threadIdx.x) / 128;
  const int lane = thread % 32, warp = thread / 32, own_row = warp * 2 + lane / 16;
  const auto sync = [&] { asm volatile("bar.sync %0, 128;\n" ::"r"(2 + side) : "memory"); };
  const Columns columns(p, column + side * 64 + lane % 16 * 4);
  staging += side * 64 * kStride;
#pragma unroll 1
  for (int piece = 0; piece < kTokens / 64; ++piece) {
    const int row = first + piece * 64 + own_row;
    RowTerms terms[kAtOnce];
    unroll<kAtOnce>([&](int i) {
      if (row + 8 * i < end) terms[i].read(p, row + 8 * i, columns);
    });
    unroll<kTokens / 64>([&](int of) {
      if (of != piece) return;
      unroll<32>([&](int e) {
        staging[(e / 4 * 8 + lane % 4 * 2 + e % 2) * kStride + warp * 16 + lane / 4 + e % 4 / 2 * 8] =
            sums[of * 32 + e];
      });
    });
    sync();
    unroll<kAtOnce>([&](int i) {
      const auto& sum = *reinterpret_cast<const float4*>(staging + (own_row + 8 * i) * kStride + lane % 16 * 4);
      if (row + 8 * i < end) terms[i].store(columns, row + 8 * i, sum);
    });
    sync();
  }
}

// Grid: of few rows (int4_row_tiles, N / 128, splits), of many (blocks, 1, splits); a cluster along z.
template <typename T, int kTokens, int kGroup, bool kZeros>
__global__ void __launch_bounds__(threads(kTokens), int4_blocks_per_sm(kTokens))
    int4_kernel(const __grid_constant__ Int4Product p, const __grid_constant__ CUtensorMap x, int stages) {
  using S = Shape<T, kTokens, kGroup>;
  constexpr bool kMany = kTokens >= kInt4ManyRows;
  extern __shared__ uint8_t shared_bytes[];
  __shared__ Mbarrier full[kMaxStages], empty[kMaxStages];
  using Unpacked = UnpackOf<T, kTokens, kZeros>;
  __shared__ __align__(16) uint32_t constants[Unpacked::kConstants];
  // Of the tiles under way: a block copies at most kMaxStages tiles ahead of those it stores.
  constexpr int kUnderWay = 2 * kMaxStages;
  __shared__ GroupedTile under_way[kUnderWay];
  const uint32_t base = (shared_address(shared_bytes) + 1023) & ~1023u;
  const int splits = static_cast<int>(gridDim.z), split = static_cast<int>(blockIdx.z);
  const int all = static_cast<int>(p.k / kDepth);
  const int first_step = all * split / splits, steps = all * (split + 1) / splits - first_step;
  const int thread = static_cast<int>(threadIdx.x);
  const bool grouped = p.offsets != nullptr;
  auto* list = static_cast<int*>(__cvta_shared_to_generic(base + static_cast<uint32_t>(S::list_at(stages))));
  const GroupedRows<kTokens> rows{list, list + p.experts + 1, p.experts};
  // Of few rows a block has one tile, of columns blockIdx.y; of many, blocks go through all.
  const int column_tiles = kMany ? static_cast<int>(p.n / kRows) : 1, own = static_cast<int>(blockIdx.x);
  const int whole_row_tiles = static_cast<int>((p.m + kTokens - 1) / kTokens);  // not grouped
  const auto whole_tile = [&](int t) {
    const int first = t % whole_row_tiles * kTokens;
    return GroupedTile{0, first, min(kTokens, static_cast<int>(p.m) - first), t / whole_row_tiles};
  };
  // Of the first tile, steps whose weights are under way before x is there.
  const int ahead = p.weights_ready && !grouped ? min(stages, steps) : 0;
  if (thread == kMultiplying) {
    for (int i = 0; i < stages; ++i) full[i].init(1), empty[i].init(kMultiplying / 32);
    publish_barriers();
    for (int step = 0; step < ahead; ++step)
      copy_weights<S>(p, kMany ? whole_tile(own).column : blockIdx.y, first_step + step, stage_at<S>(base, step),
                      full[step]);
  }
  if (thread < Unpacked::kMakers) Unpacked::make_constants(thread, constants);
  if (grouped && thread < 32) {
    griddep_wait();
    if constexpr (kMany) {
      rows.list(p.offsets, thread);
    } else {
      const GroupedTile found = rows.find(p.offsets, p.experts, own, thread);
      if (thread == 0) under_way[0] = found;
    }
  }
  __syncthreads();
  int tiles = whole_row_tiles * column_tiles;
  if (grouped) tiles = kMany ? rows.tiles[p.experts] * column_tiles : under_way[0].rows > 0 ? own + 1 : 0;
  tiles = __reduce_max_sync(kWholeWarp, tiles);  // in a uniform register, as the stages of loops then are
  if (own >= tiles) return;                      // the whole cluster
  const auto tile_at = [&](int t) {
    GroupedTile tile = !grouped ? whole_tile(t) : kMany ? rows.at(t, column_tiles, 1) : under_way[0];
    if (!kMany) tile.column = static_cast<int>(blockIdx.y);
    return tile;
  };
  if (thread >= kMultiplying) {
    if constexpr (kMany) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;\n");
    griddep_wait();
    griddep_launch_dependents();
    if (thread > kMultiplying) return;
    Turn turn{0, 1};
    int count = 0;
#pragma unroll 1
    for (int t = own; t < tiles; t += static_cast<int>(gridDim.x)) {
      const GroupedTile of = tile_at(t);
      if constexpr (kMany) under_way[count++ % kUnderWay] = of;
      const int64_t weights = of.expert * (p.n / kRows) + of.column;
#pragma unroll 1
      for (int step = 0; step < steps; ++step, turn = turn.next(stages)) {
        const Stage tile = stage_at<S>(base, turn.stage);
        empty[turn.stage].wait(turn.phase);
        if (t > own || step >= ahead) copy_weights<S>(p, weights, first_step + step, tile, full[turn.stage]);
        copy_x<T, kTokens>(x, of.row, first_step + step, tile.x, full[turn.stage]);
      }
    }
    return;
  }
  auto* joined = static_cast<float*>(__cvta_shared_to_generic(base));  // over the tiles: [row of x][column of y]
  float sums[kTokens / 2] = {};
  if constexpr (kMany) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n");
    float* staging = joined + stages * S::kStageBytes / 4;
    Turn turn;
    int count = 0;
#pragma unroll 1
    for (int t = own; t < tiles; t += static_cast<int>(gridDim.x)) {
      unroll<kTokens / 2>([&](int e) { sums[e] = 0; });
      multiply_many<T, kTokens, kGroup, kZeros>(base, stages, steps, full, empty, turn, constants, sums);
      griddep_wait();
      const GroupedTile tile = under_way[count++ % kUnderWay];
      if (splits == 1) store_alone<kTokens>(p, sums, staging, tile.row, tile.row + tile.rows, tile.column * kRows);
    }
    if (splits == 1) return;
  } else {
    multiply_few<T, kTokens, kGroup, kZeros>(base, stages, steps, full, empty, constants, sums);
    griddep_wait();
  }
  const GroupedTile tile = kMany ? under_way[0] : tile_at(own);
  const auto sync = [] { asm volatile("bar.sync 1, 256;\n" ::: "memory"); };  // of the multiplying
  sync();                                                                     // nobody reads tiles any more
  const int lane = thread % 32, warp = thread / 32;
  unroll<kTokens / 2>([&](int e) {
    joined[(e / 4 * 8 + lane % 4 * 2 + e % 2) * kSumStride + warp * 16 + lane / 4 + e % 4 / 2 * 8] = sums[e];
  });
  // A warp joins rows, some at once; what they need beside the sums goes ahead.
  constexpr int kWarps = kMultiplying / 32, kAtOnce = kTokens <= 32 ? 1 : 4;
  const Columns columns(p, tile.column * kRows + lane * 4);
  const int begin = kTokens * split / splits + warp, end = min(kTokens * (split + 1) / splits, tile.rows);
  RowTerms terms[kAtOnce];
  const auto read_terms = [&](int from) {
    unroll<kAtOnce>([&](int i) {
      if (from + i * kWarps < end) terms[i].read(p, tile.row + from + i * kWarps, columns);
    });
  };
  read_terms(begin);
  const auto cluster = cooperative_groups::this_cluster();
  splits > 1 ? cluster.sync() : sync();
#pragma unroll 1
  for (int from = begin; from < end; from += kAtOnce * kWarps) {
    if (from != begin) read_terms(from);
    float4 total[kAtOnce] = {};
    unroll<kAtOnce>([&](int i) {
      float* sum = joined + min(from + i * kWarps, kTokens - 1) * kSumStride + lane * 4;
      if (splits == 1) total[i] = *reinterpret_cast<const float4*>(sum);
      float4 parts[kInt4Splits];
      if (splits > 1) {
        unroll<kInt4Splits>([&](int rank) {
          if (rank < splits) parts[rank] = *reinterpret_cast<const float4*>(cluster.map_shared_rank(sum, rank));
        });
        unroll<kInt4Splits>([&](int rank) {
          if (rank < splits) add(total[i], parts[rank]);
        });
      }
    });
    unroll<kAtOnce>([&](int i) {
      if (from + i * kWarps < end) terms[i].store(columns, tile.row + from + i * kWarps, total[i]);
    });
  }
  if (splits > 1) {  // DSMEM of a block is read until here
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
  }
}

template <typename T, int kTokens>
void launch(const Int4Product& p, const Int4Plan& plan, cudaStream_t stream) {
  const auto with_group = [&]<int kGroup>(std::integral_constant<int, kGroup>) {
    const auto splits = static_cast<unsigned>(plan.splits);
    const auto rows = static_cast<unsigned>(int4_row_tiles(p, kTokens)), columns = static_cast<unsigned>(p.n / kRows);
    const dim3 blocks =
        kTokens < kInt4ManyRows ? dim3{rows, columns, splits} : dim3{static_cast<unsigned>(plan.blocks), 1, splits};
    const Grid grid{blocks,
                    threads(kTokens),
                    static_cast<size_t>(Shape<T, kTokens, kGroup>::bytes(plan.stages, p.experts)),
                    {1, 1, splits}};
    const CUtensorMap x = row_tiles(p.x, p.dtype, p.m, p.k, kTokens);
    p.zeros != nullptr ? launch_overlapped(int4_kernel<T, kTokens, kGroup, true>, grid, stream, p, x, plan.stages)
                       : launch_overlapped(int4_kernel<T, kTokens, kGroup, false>, grid, stream, p, x, plan.stages);
  };
  if constexpr (kTokens <= 128) {
    if (p.group == 32) return with_group(std::integral_constant<int, 32>{});
    if (p.group == 64) return with_group(std::integral_constant<int, 64>{});
  }
  with_group(std::integral_constant<int, 128>{});
}

}  // namespace octet::cuda::int4
