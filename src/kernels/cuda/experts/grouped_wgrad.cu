// Weight gradients of experts on Hopper's tensor cores: dw[e] [M, N] (+)= dy^T x over the rows of expert e, bf16 by
// bf16 into float32.
//
// Persistent CTAs, one per SM, go through tiles of 128 by 256 of all experts; the CTAs of a pair (kCtas, a cluster)
// multiply the same columns of x, of which each copies half to both (TMA multicast). Both operands are read as they
// lie, panels of 64 columns by 32 rows, by TMA into a ring of stages; the tensor cores contract down the panels. Two
// warp groups multiply, 64 rows of dw each. The last stage of an expert holds rows of the next one: they are
// overwritten by zeros, since 0 times infinity is not 0. An expert without rows has zeros, or keeps what it is added
// to. Results leave by TMA, a warp's 16 rows by 32 columns at once, while the next tile is multiplied.
#include <cooperative_groups.h>

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/experts/experts.h"

namespace octet::cuda {
namespace {

// Registers go from the copying warp group to the multiplying ones.
constexpr int kMultiplying = 256, kThreads = kMultiplying + 128;
constexpr int kRows = 128, kColumns = 256, kDepth = 32;  // of dw a tile; rows of dy and x a stage
constexpr int kPanelBytes = kDepth * 128, kLeftPanels = kRows / 64, kRightPanels = kColumns / 64;
constexpr int kStageBytes = (kLeftPanels + kRightPanels) * kPanelBytes, kStages = 6;
constexpr int kBoxRows = 16, kBoxBytes = kBoxRows * 128, kBoxes = 4;  // of a warp: one is filled, the rest being stored

struct Ring {
  Mbarrier full[kStages], empty[kStages];
};

// Rows [begin, begin + depth) of dy and x into rows and columns of dw[expert] from (row, column) on.
struct Tile {
  int expert, begin, depth, row, column;

  __device__ __forceinline__ Tile(const GroupedWgrad& p, int t, int row_tiles, int column_tiles) {
    expert = t / (row_tiles * column_tiles), row = t % row_tiles * kRows;
    column = t / row_tiles % column_tiles * kColumns;
    begin = p.offsets[expert], depth = p.offsets[expert + 1] - begin;
  }
  __device__ __forceinline__ int steps() const { return (depth + kDepth - 1) / kDepth; }
};

struct Turn {
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

template <int kCtas>
__device__ __forceinline__ void copy_tile(const CUtensorMap& dy, const CUtensorMap& x, const Tile& tile, Turn& turn,
                                          uint32_t stages, Ring& ring) {
  for (int step = 0; step < tile.steps(); ++step, turn.advance()) {
    const uint32_t to = stages + static_cast<uint32_t>(turn.stage * kStageBytes);
    const int from = tile.begin + step * kDepth;
    Mbarrier& full = ring.full[turn.stage];
    ring.empty[turn.stage].wait(turn.phase ^ 1);
    full.arrive_expect(kStageBytes);
    unroll<kLeftPanels>([&](int i) { load_tile(to + i * kPanelBytes, dy, from, tile.row + i * 64, full); });
    unroll<kRightPanels / kCtas>([&](int i) {
      const int panel = static_cast<int>(blockIdx.x) % kCtas * kRightPanels / kCtas + i;
      const uint32_t at = to + static_cast<uint32_t>((kLeftPanels + panel) * kPanelBytes);
      if constexpr (kCtas == 1) load_tile(at, x, from, tile.column + panel * 64, full);
      if constexpr (kCtas == 2) load_tile_to(0b11, at, x, from, tile.column + panel * 64, full);
    });
  }
}

// Rows from `left` on of the panels that a warp group reads become zeros: both groups clear those of x, each before it
// multiplies.
__device__ __forceinline__ void clear_rows(uint32_t stage, int group, int left) {
  const int thread = static_cast<int>(threadIdx.x) % 128, pieces = (kDepth - left) * 8;
  unroll<1 + kRightPanels>([&](int i) {
    const uint32_t panel = stage + static_cast<uint32_t>((i == 0 ? group : kLeftPanels + i - 1) * kPanelBytes);
    for (int piece = thread; piece < pieces; piece += 128) {
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(panel + left * 128 + piece * 16), "r"(0)
                   : "memory");
    }
  });
  wgmma::fence_shared();
  asm volatile("bar.sync %0, 128;\n" ::"r"(1 + group) : "memory");
}

// A warp's 16 rows of sums by way of its boxes. Lanes of odd rows take the 8-column groups of a box in another order,
// so that those of four rows are in different banks.
__device__ __forceinline__ void store_sums(const GroupedWgrad& p, const CUtensorMap& dw, const Tile& tile,
                                           const float (&sums)[kColumns / 2], uint32_t boxes, int& next) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const bool odd = lane / 4 % 2 != 0;
#pragma unroll
  for (int box = 0; box < kColumns / 32; ++box) {
    if (tile.column + box * 32 >= p.n) return;
    const uint32_t to = boxes + static_cast<uint32_t>(next * kBoxBytes);
    next = next + 1 < kBoxes ? next + 1 : 0;
    if (lane == 0) wait_stores<kBoxes - 1>();
    __syncwarp();
    unroll<4, 2>([&](int n, int high) {
      const int own = box * 16 + n * 4 + high * 2, other = box * 16 + (n ^ 2) * 4 + high * 2;
      const uint32_t at =
          to + high * 8 * 128 + lane % 2 * 8 + wgmma::panel_offset(lane / 4, (odd ? n ^ 2 : n) * 2 + lane % 4 / 2);
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(odd ? sums[other] : sums[own]),
                   "f"(odd ? sums[other + 1] : sums[own + 1])
                   : "memory");
    });
    wgmma::fence_shared();
    __syncwarp();
    if (lane == 0) {
      const int row = tile.row + warp * kBoxRows, column = tile.column + box * 32;
      p.adds ? add_tile(to, dw, tile.expert, row, column) : store_tile(to, dw, tile.expert, row, column);
      commit_stores();
    }
  }
}

template <int kCtas>
__device__ __forceinline__ void multiply_tile(const GroupedWgrad& p, const CUtensorMap& dw, const Tile& tile,
                                              Turn& turn, uint32_t stages, uint32_t boxes, int& next, Ring& ring) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  float sums[kColumns / 2] = {};
  int last = 0;
  const auto release = [&] {
    if (kCtas == 1 && threadIdx.x % 32 == 0) ring.empty[last].arrive();
    if (kCtas == 2 && threadIdx.x % 32 < 2) arrive_at(ring.empty[last], threadIdx.x % 32);
  };
  for (int step = 0; step < tile.steps(); ++step, turn.advance()) {
    const uint32_t at = stages + static_cast<uint32_t>(turn.stage * kStageBytes);
    const int left = tile.depth - step * kDepth;
    ring.full[turn.stage].wait(turn.phase);
    if (left < kDepth) clear_rows(at, group, left);
    wgmma::pin(sums);
    wgmma::fence();
    unroll<kDepth / 16>([&](int k) {
      wgmma::multiply_rows<bf16, 1, 1>(sums, wgmma::descriptor(at + group * kPanelBytes + k * 16 * 128),
                                       wgmma::descriptor(at + kLeftPanels * kPanelBytes + k * 16 * 128, kPanelBytes),
                                       1);
    });
    wgmma::commit();
    wgmma::wait<1>();
    if (step > 0) release();
    last = turn.stage;
  }
  wgmma::wait<0>();
  wgmma::pin(sums);
  if (tile.depth > 0) release();
  if (tile.depth > 0 || !p.adds) store_sums(p, dw, tile, sums, boxes, next);
}

template <int kCtas>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_wgrad_wgmma_kernel(GroupedWgrad p, const __grid_constant__ CUtensorMap dy,
                               const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap dw) {
  extern __shared__ __align__(1024) uint8_t shared_stages[];
  __shared__ Ring ring;
  if (threadIdx.x == 0) {
    unroll<kStages>([&](int stage) {
      ring.full[stage].init(1);
      ring.empty[stage].init(kCtas * kMultiplying / 32);
    });
    publish_barriers();
  }
  kCtas == 1 ? __syncthreads() : cooperative_groups::this_cluster().sync();
  griddep_wait();
  griddep_launch_dependents();
  const int row_tiles = static_cast<int>((p.m + kCtas * kRows - 1) / (kCtas * kRows)) * kCtas,
            column_tiles = static_cast<int>((p.n + kColumns - 1) / kColumns);
  const uint32_t stages = shared_address(shared_stages);
  Turn turn;
  const auto for_tiles = [&](auto body) {
#pragma unroll 1
    for (int t = static_cast<int>(blockIdx.x); t < p.experts * row_tiles * column_tiles;
         t += static_cast<int>(gridDim.x))
      body(Tile(p, t, row_tiles, column_tiles));
  };
  if (threadIdx.x >= kMultiplying) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x == kMultiplying)
      for_tiles([&](const Tile& tile) { copy_tile<kCtas>(dy, x, tile, turn, stages, ring); });
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    const uint32_t boxes = stages + kStages * kStageBytes + threadIdx.x / 32 * kBoxes * kBoxBytes;
    int next = 0;
    for_tiles([&](const Tile& tile) { multiply_tile<kCtas>(p, dw, tile, turn, stages, boxes, next, ring); });
    wait_stores<0>();  // shared memory is read until here
  }
  if constexpr (kCtas == 2) cooperative_groups::this_cluster().sync();  // and written by the other CTA
}

template <int kCtas>
void launch(const GroupedWgrad& p, int sm_count, cudaStream_t stream) {
  const Grid grid{{static_cast<unsigned>(sm_count / kCtas * kCtas)},
                  kThreads,
                  kStages * kStageBytes + kMultiplying / 32 * kBoxes * kBoxBytes,
                  {kCtas}};
  launch_overlapped(grouped_wgrad_wgmma_kernel<kCtas>, grid, stream, p,
                    row_tiles(p.dy, DType::kBF16, p.rows, p.m, kDepth),
                    row_tiles(p.x, DType::kBF16, p.rows, p.n, kDepth),
                    group_tiles(p.out, DType::kF32, p.experts, p.m, p.n, kBoxRows));
}

}  // namespace

std::vector<WgradPlan> candidates(const WgradDesc& desc, const DeviceFacts&) {
  if (desc.m <= kRows) return {{1}, {2}};
  return {{2}, {1}};
}

void launch_grouped_wgrad(const GroupedWgrad& wgrad, const WgradPlan& plan, int sm_count, cudaStream_t stream) {
  plan.ctas == 2 ? launch<2>(wgrad, sm_count, stream) : launch<1>(wgrad, sm_count, stream);
}

}  // namespace octet::cuda
