// Weights of 4 bits times x.
//
// A block makes 128 columns of y for kTokens rows: two warp groups multiply, 64 columns each; one thread of a warp
// copies tiles by TMA: codes and scales as they lie, x swizzled. Sums of a group of K are scaled into the sums of all.
// The blocks of a cluster share K; each joins a share of their sums, in order. Of a grouped product there are blocks
// for any split of the rows among the experts: each finds its own from the offsets, those beyond the last end.
#pragma once

#include <cooperative_groups.h>

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

// Grid: (int4_row_tiles, N / 128, splits), a cluster along z.
template <typename T, int kTokens, int kGroup, bool kZeros>
__global__ void __launch_bounds__(threads(kTokens), int4_blocks_per_sm(kTokens, kType<T>))
    int4_kernel(const __grid_constant__ Int4Product p, const __grid_constant__ CUtensorMap x, int stages) {
  using S = Shape<T, kTokens, kGroup>;
  extern __shared__ uint8_t shared_bytes[];
  __shared__ Mbarrier full[kMaxStages], empty[kMaxStages];
  __shared__ __align__(16) uint32_t constants[kConstants];
  __shared__ RowTile found;
  const uint32_t base = (shared_address(shared_bytes) + 1023) & ~1023u;
  const int splits = static_cast<int>(gridDim.z), split = static_cast<int>(blockIdx.z);
  const int all = static_cast<int>(p.k / kDepth);
  const int first_step = all * split / splits, steps = all * (split + 1) / splits - first_step;
  const int thread = static_cast<int>(threadIdx.x);
  const bool grouped = p.offsets != nullptr;
  // Tiles whose weights are under way before x is there.
  const int ahead = p.weights_ready && !grouped ? min(stages, steps) : 0;
  if (thread == kMultiplying) {
    for (int i = 0; i < stages; ++i) full[i].init(1), empty[i].init(kMultiplying / 32);
    publish_barriers();
    for (int step = 0; step < ahead; ++step)
      copy_weights<S>(p, blockIdx.y, first_step + step, stage_at<S>(base, step), full[step]);
  }
  if (thread <= kTables) make_constants(thread, constants);
  if (grouped && thread < 32) {
    griddep_wait();
    find_tile<kTokens>(p, static_cast<int>(blockIdx.x), found);
  }
  __syncthreads();
  const int first = grouped ? found.first : static_cast<int>(blockIdx.x) * kTokens;
  const int rows_end = grouped ? found.end : static_cast<int>(p.m);
  if (first >= rows_end) return;  // the whole cluster
  const int column = static_cast<int>(blockIdx.y) * kRows;
  auto* joined = static_cast<float*>(__cvta_shared_to_generic(base));  // over the tiles: [row of x][column of y]
  if (thread >= kMultiplying) {
    if constexpr (kTokens > 32) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;\n");
    griddep_wait();
    griddep_launch_dependents();
    if (thread == kMultiplying) {
      const int64_t row_tile = (grouped ? found.expert : 0) * (p.n / kRows) + blockIdx.y;
      int stage = 0, phase = 1;
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const Stage tile = stage_at<S>(base, stage);
        empty[stage].wait(static_cast<uint32_t>(phase));
        if (step >= ahead) copy_weights<S>(p, row_tile, first_step + step, tile, full[stage]);
        copy_x<T, kTokens>(x, first, first_step + step, tile.x, full[stage]);
        if (++stage == stages) stage = 0, phase ^= 1;
      }
    }
    return;
  }
  if constexpr (kTokens > 32) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n");
  float sums[kTokens / 2] = {};
  if constexpr (kTokens <= 32)
    multiply_few<T, kTokens, kGroup, kZeros>(base, stages, steps, full, empty, constants, sums);
  else
    multiply_many<T, kTokens, kGroup, kZeros>(base, stages, steps, full, empty, constants, sums);
  griddep_wait();
  const auto sync = [] { asm volatile("bar.sync 1, 256;\n" ::: "memory"); };  // of the multiplying
  sync();                                                                     // nobody reads tiles any more
  const int lane = thread % 32, warp = thread / 32;
  unroll<kTokens / 2>([&](int e) {
    joined[(e / 4 * 8 + lane % 4 * 2 + e % 2) * kSumStride + warp * 16 + lane / 4 + e % 4 / 2 * 8] = sums[e];
  });
  // A warp joins rows, some at once; what they need beside the sums goes ahead.
  constexpr int kWarps = kMultiplying / 32, kAtOnce = kTokens <= 32 ? 1 : 4;
  const Columns columns(p, column + lane * 4);
  const int begin = kTokens * split / splits + warp, end = min(kTokens * (split + 1) / splits, rows_end - first);
  RowTerms terms[kAtOnce];
  const auto read_terms = [&](int from) {
    unroll<kAtOnce>([&](int i) {
      if (from + i * kWarps < end) terms[i].read(p, first + from + i * kWarps, columns);
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
      if (from + i * kWarps < end) terms[i].store(columns, first + from + i * kWarps, total[i]);
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
    const Grid grid{{static_cast<unsigned>(int4_row_tiles(p, kTokens)), static_cast<unsigned>(p.n / kRows), splits},
                    threads(kTokens),
                    static_cast<size_t>(Shape<T, kTokens, kGroup>::bytes(plan.stages)),
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
