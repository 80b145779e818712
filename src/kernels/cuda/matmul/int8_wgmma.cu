// Products of int8 codes on Hopper's tensor cores, x [M, K] by weights [N, K], as y^T = W x^T: int32 sums, which are
// exact, so that tiles and splits change no bit.
//
// Pairs of CTAs (clusters) go through tiles of 256 columns of y by kTokens rows of x, 128 columns each; both read the
// same rows of x, of which each copies half to both (TMA multicast). Two warp groups multiply, 64 columns each; one
// thread of a third copies 128 bytes of K at a time into a ring of stages. Where tiles are few, up to four pairs of a
// cluster share K, and each joins a share of the sums.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/matmul/launchers.h"

namespace octet::cuda {
namespace {

constexpr int kMultiplying = 256, kThreads = kMultiplying + 128, kWarps = kMultiplying / 32;
constexpr int kColumns = static_cast<int>(kInt8Columns) / 2, kPanelBytes = kColumns * 128, kMaxStages = 8;
constexpr int kRun = 8;                    // neighbouring columns of y that a lane stores
constexpr int kScratchStride = 16 + 4;     // sums: of a row of x, by a warp's 16 columns
constexpr int kJoinStride = kColumns + 4;  // the same of a CTA, where pairs join
constexpr int64_t kRowsAtOnce = 8;         // row tiles that take turns with the columns: what L2 holds of x and weights

template <int kTokens>
struct Shape {
  static constexpr bool kMovesRegisters = kTokens > 128;  // from the copying warp group to the multiplying ones
  static constexpr int kStages = kTokens == 64 ? 8 : kTokens == 128 ? 6 : kTokens == 192 ? 5 : 4;
  static constexpr int kStageBytes = kPanelBytes + kTokens * 128;
  static constexpr int kScratchBytes = 16 * kScratchStride * 4;  // of a warp: 16 rows of x
  static constexpr int kBytes = kStages * kStageBytes + kWarps * kScratchBytes + 1024;
  static_assert(kTokens > 128 || kTokens * kJoinStride * 4 <= kStages * kStageBytes);
};

struct Ring {
  Mbarrier full[kMaxStages], empty[kMaxStages];
};

// Tile t: rows [row, ..) of x and, of this CTA, columns [column, ..).
struct Tile {
  int row, column;

  template <int kTokens>
  static __device__ Tile at(const Gemv& g, int64_t t, int half) {
    const int64_t rows = (g.m + kTokens - 1) / kTokens, pairs = (g.n + kInt8Columns - 1) / kInt8Columns;
    const int64_t block = t / (kRowsAtOnce * pairs), in_block = t % (kRowsAtOnce * pairs);
    const int64_t of_block = min(kRowsAtOnce, rows - block * kRowsAtOnce);
    return {static_cast<int>((block * kRowsAtOnce + in_block % of_block) * kTokens),
            static_cast<int>(in_block / of_block * kInt8Columns) + half * kColumns};
  }
};

// Columns [column, column + kRun) of y: where they go, and what their sums become.
struct Run {
  void* to = nullptr;  // null: nowhere
  int64_t width = 0;   // of a row there
  const Gemv& g;
  int64_t column;
  float scale[kRun], bias[kRun] = {};

  __device__ __forceinline__ Run(const Gemv& g, int64_t column) : g(g), column(column) {
    for (int i = 0; i < g.part_count; ++i) {
      const GemvPart& part = g.parts[i];
      if (column < part.begin || column >= part.end || part.out == nullptr) continue;
      width = part.end - part.begin;
      to = static_cast<std::byte*>(part.out) + (column - part.begin) * (g.out_dtype == DType::kF32 ? 4 : 2);
    }
    if (to == nullptr) return;
    unroll<kRun>([&](int i) { scale[i] = g.weight_scale[g.weight_scale_rows ? column + i : 0]; });
    if (g.bias != nullptr) load({const_cast<void*>(g.bias), g.bias_dtype}, column, bias);
  }
  __device__ __forceinline__ bool has(int64_t row) const { return to != nullptr && row < g.m; }
  template <typename To>
  __device__ __forceinline__ void load_c(int64_t row, Vec<To, kRun>& c) const {
    if (g.c != nullptr && has(row))
      c = *reinterpret_cast<const Vec<To, kRun>*>(static_cast<const To*>(g.c) + row * g.n + column);
  }
  template <typename To>
  __device__ __forceinline__ void store(int64_t row, const int4 (&sums)[2], float x_scale,
                                        const Vec<To, kRun>& c) const {
    if (!has(row)) return;
    const int of[kRun] = {sums[0].x, sums[0].y, sums[0].z, sums[0].w, sums[1].x, sums[1].y, sums[1].z, sums[1].w};
    Vec<To, kRun> y;
    unroll<kRun>([&](int i) {
      y.at[i] = from_float<To>(scale_sum(of[i], x_scale, scale[i], g.c != nullptr ? to_float(c.at[i]) : 0.0f, bias[i]));
    });
    *reinterpret_cast<Vec<To, kRun>*>(static_cast<To*>(to) + row * width) = y;
  }
};

template <typename Body>
__device__ __forceinline__ void with_result_type(DType dtype, Body&& body) {
  if (dtype == DType::kBF16) return body(bf16{});
  dtype == DType::kF16 ? body(f16{}) : body(float{});
}
__device__ __forceinline__ float scale_of_row(const Gemv& g, int64_t row) {
  return g.x_scale_rows ? (row < g.m ? g.x_scale[row] : 0.0f) : *g.x_scale;
}
template <typename V>
__device__ __forceinline__ V* shared_pointer(uint32_t address) {
  return static_cast<V*>(__cvta_shared_to_generic(address));
}

// A warp's sums, its 16 columns by 2 kCount rows of x, to their places by way of its scratch, 16 rows at once.
template <int kCount>
__device__ __forceinline__ void store_sums(const Run& run, const Tile& tile, const float (&x_scale)[kCount / 8],
                                           const int32_t (&sums)[kCount], uint32_t scratch) {
  constexpr int kAhead = 2;  // rows of c under way
  const int lane = static_cast<int>(threadIdx.x) % 32, row = tile.row + lane / 2;
  auto* in = shared_pointer<int32_t>(scratch) + lane % 4 * 2 * kScratchStride + lane / 4;
  const auto* out = shared_pointer<const int4>(scratch + (lane / 2 * kScratchStride + lane % 2 * kRun) * 4);
  with_result_type(run.g.out_dtype, [&]<typename To>(To) {
    Vec<To, kRun> c[kAhead] = {};
    unroll<kAhead>([&](int part) { run.load_c(row + part * 16, c[part]); });
    unroll<kCount / 8>([&](int part) {
      unroll<8>([&](int i) { in[(i / 4 * 8 + i % 2) * kScratchStride + i % 4 / 2 * 8] = sums[part * 8 + i]; });
      __syncwarp();
      const int4 of[2] = {out[0], out[1]};
      __syncwarp();
      run.store(row + part * 16, of, x_scale[part], c[part % kAhead]);
      if (part + kAhead < kCount / 8) run.load_c(row + (part + kAhead) * 16, c[part % kAhead]);
    });
  });
}

// The sums of the pairs of a cluster, each a part of K: every one joins a share of the rows of x.
template <int kTokens>
__device__ __forceinline__ void join_sums(const Gemv& g, const Tile& tile, uint32_t joined, unsigned half) {
  const auto cluster = cooperative_groups::this_cluster();
  const int splits = static_cast<int>(gridDim.z), split = static_cast<int>(blockIdx.z);
  constexpr int kRuns = kColumns / kRun;
  const Run run(g, tile.column + static_cast<int>(threadIdx.x) % kRuns * kRun);  // the same every turn
  for (int i = kTokens * split / splits * kRuns + static_cast<int>(threadIdx.x);
       i < kTokens * (split + 1) / splits * kRuns; i += kThreads) {
    const int64_t row = tile.row + i / kRuns;
    int4 sums[2] = {};
    for (int other = 0; other < splits; ++other) {
      const auto* from = cluster.map_shared_rank(
          shared_pointer<int4>(joined + (i / kRuns * kJoinStride + i % kRuns * kRun) * 4), half + 2 * other);
      unroll<2>([&](int n) {
        const int4 more = from[n];
        sums[n].x += more.x, sums[n].y += more.y, sums[n].z += more.z, sums[n].w += more.w;
      });
    }
    with_result_type(g.out_dtype, [&]<typename To>(To) {
      Vec<To, kRun> c = {};
      run.load_c(row, c);
      if (run.has(row)) run.store(row, sums, scale_of_row(g, row), c);
    });
  }
}

// Grid: (2 pairs, 1, splits), a cluster (2, 1, splits); with splits a tile each.
template <int kTokens, bool kSplit>
__global__ void __launch_bounds__(kThreads, 1)
    int8_wgmma_kernel(const __grid_constant__ Gemv g, const __grid_constant__ CUtensorMap w,
                      const __grid_constant__ CUtensorMap x, int64_t tiles) {
  using S = Shape<kTokens>;
  constexpr int kCount = kTokens / 2;
  extern __shared__ uint8_t shared_bytes[];
  __shared__ Ring ring;
  const auto cluster = cooperative_groups::this_cluster();
  const uint32_t stages = (shared_address(shared_bytes) + 1023) & ~1023u;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const unsigned half = blockIdx.x % 2, first_of_pair = kSplit ? 2 * blockIdx.z : 0;
  const int all = static_cast<int>((g.k + 127) / 128), splits = kSplit ? static_cast<int>(gridDim.z) : 1;
  const int split = kSplit ? static_cast<int>(blockIdx.z) : 0;
  const int begin = all * split / splits, end = all * (split + 1) / splits;
  if (thread == 0) {
    unroll<S::kStages>([&](int stage) {
      ring.full[stage].init(1);
      ring.empty[stage].init(2 * kWarps);  // of both CTAs, which a copy of x goes to
    });
    publish_barriers();
  }
  cluster.sync();
  griddep_wait();
  griddep_launch_dependents();
  int stage = 0;
  uint32_t phase = 0;
  const auto next_stage = [&] {
    if (++stage == S::kStages) stage = 0, phase ^= 1;
  };
  const int64_t first = blockIdx.x / 2, step_of_tiles = gridDim.x / 2;
  if (thread >= kMultiplying) {
    if constexpr (S::kMovesRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (thread == kMultiplying) {
#pragma unroll 1
      for (int64_t t = first; t < tiles; t += step_of_tiles) {
        const Tile tile = Tile::at<kTokens>(g, t, static_cast<int>(half));
#pragma unroll 1
        for (int step = begin; step < end; ++step, next_stage()) {
          const uint32_t to = stages + static_cast<uint32_t>(stage * S::kStageBytes);
          const int x_half = static_cast<int>(half) * kTokens / 2;
          ring.empty[stage].wait(phase ^ 1);
          ring.full[stage].arrive_expect(S::kStageBytes);
          load_tile(to, w, tile.column, step * 128, ring.full[stage]);
          load_tile_to(static_cast<uint16_t>(3u << first_of_pair),
                       to + kPanelBytes + static_cast<uint32_t>(x_half * 128), x, tile.row + x_half, step * 128,
                       ring.full[stage]);
        }
      }
    }
    __syncwarp();
  } else {
    if constexpr (S::kMovesRegisters) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    [[maybe_unused]] const uint32_t scratch =
        stages + S::kStages * S::kStageBytes + static_cast<uint32_t>(warp * S::kScratchBytes);
#pragma unroll 1
    for (int64_t t = first; t < tiles; t += step_of_tiles) {
      const Tile tile = Tile::at<kTokens>(g, t, static_cast<int>(half));
      [[maybe_unused]] float x_scale[kCount / 8];
      if constexpr (!kSplit)
        unroll<kCount / 8>([&](int part) { x_scale[part] = scale_of_row(g, tile.row + part * 16 + lane / 2); });
      int32_t sums[kCount] = {};
      int last = 0;
      const auto release = [&](int of) {
        if (lane < 2) arrive_at(ring.empty[of], first_of_pair + static_cast<unsigned>(lane));
      };
#pragma unroll 1
      for (int step = begin; step < end; ++step, next_stage()) {
        const uint32_t at = stages + static_cast<uint32_t>(stage * S::kStageBytes);
        ring.full[stage].wait(phase);
        wgmma::pin(sums);
        wgmma::fence();
        unroll<4>([&](int k) {
          wgmma::multiply_rows<int8_t>(sums, wgmma::descriptor(at + warp / 4 * 64 * 128 + k * 32),
                                       wgmma::descriptor(at + kPanelBytes + k * 32), 1);
        });
        wgmma::commit();
        wgmma::wait<1>();
        if (step > begin) release(last);
        last = stage;
      }
      wgmma::wait<0>();
      wgmma::pin(sums);
      release(last);
      if constexpr (!kSplit) {
        const Run run(g, tile.column + warp * 16 + lane % 2 * kRun);
        store_sums<kCount>(run, tile, x_scale, sums, scratch);
      } else {
        // Nobody reads stages, and nothing is copied to them, when the sums of both CTAs are complete.
        asm volatile("bar.sync 1, 256;\n" ::: "memory");
        auto* joined = shared_pointer<int32_t>(stages);
        const int column = warp * 16 + lane / 4;
        unroll<kCount>([&](int i) {
          joined[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kJoinStride + column + i % 4 / 2 * 8] = sums[i];
        });
      }
    }
  }
  cluster.sync();  // until here CTAs copy to each other, and arrive at each other's barriers
  if constexpr (kSplit) {
    join_sums<kTokens>(g, Tile::at<kTokens>(g, first, static_cast<int>(half)), stages, half);
    cluster.sync();  // and read each other's sums
  }
}

template <int kTokens, bool kSplit>
void launch(const Gemv& g, const Int8Plan& plan, cudaStream_t stream) {
  const auto splits = static_cast<unsigned>(plan.splits);
  const Grid grid{{static_cast<unsigned>(2 * plan.clusters), 1, splits},
                  kThreads,
                  static_cast<size_t>(Shape<kTokens>::kBytes),
                  {2, 1, splits}};
  launch_overlapped(int8_wgmma_kernel<kTokens, kSplit>, grid, stream, g,
                    row_tiles(g.weights, g.dtype, g.n, g.k, kColumns), row_tiles(g.x, g.dtype, g.m, g.k, kTokens / 2),
                    plan.tiles);
}

}  // namespace

void launch_int8_wgmma(const Gemv& g, const Int8Plan& plan, cudaStream_t stream) {
  switch (plan.tokens) {
    case 64: return plan.splits > 1 ? launch<64, true>(g, plan, stream) : launch<64, false>(g, plan, stream);
    case 128: return plan.splits > 1 ? launch<128, true>(g, plan, stream) : launch<128, false>(g, plan, stream);
    case 192: return launch<192, false>(g, plan, stream);
    default: return launch<256, false>(g, plan, stream);
  }
}

}  // namespace octet::cuda
