// Grouped products on Hopper's tensor cores: x [R, K] by the weights of each row's expert [N, K], bf16 or codes of e4m3
// or int8, as y^T = W x^T, so that a tile has as many rows of x as its expert has.
//
// Persistent CTAs, one per SM, go through the tiles (grouped_rows.cuh): 128 columns of y by at most kTokens rows of one
// expert, a multiple of 32 of which are multiplied.
// Two warp groups multiply, 64 columns each; one thread of a warp copies 128 bytes of K by TMA into a ring of stages.
// Results leave by TMA too, 32 rows by 64 columns at once, while the next tile is multiplied.
// Tiles of one expert and the same columns follow each other, so that the weights are read from memory once.
// Weights [K, N] (kTransposed, gradients of x) come as panels of 64 of K by the 64 columns of each warp group.
// With scales in blocks (kBlocks) a stage is a block of K: its sums are multiplied by the scales, which a second warp
// writes beside the stage, and added up in registers, while the other warp group's products run.
#include "kernels/cuda/common/grouped_rows.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/experts/experts.h"

namespace octet::cuda {
namespace {

// Registers go from the copying warp group to the multiplying ones.
constexpr int kMultiplying = 256, kThreads = kMultiplying + 128;
constexpr int kColumns = 128, kBoxRows = 32;  // columns of y a tile, rows of x a copy
constexpr int kPanelBytes = kColumns * 128, kBoxBytes = kBoxRows * 128, kMaxStages = 8;
// Of a warp group: boxes of 32 rows of y by 64 columns, 16 bits each. While one is filled, two are being stored.
constexpr int kOutBoxes = 3, kOutBytes = kOutBoxes * kBoxBytes;

constexpr int kScaleBytes = 128 * 4;  // of a stage's scales
template <int kTokens, bool kBlocks = false>
inline constexpr int kStages = kTokens == 256   ? 4
                               : kTokens == 128 ? 5
                               : kBlocks        ? 7
                                                : kMaxStages;
template <int kTokens>
inline constexpr int kStageBytes = kPanelBytes + kTokens * 128;

// Whether results go by way of shared memory: rows of y are whole pieces of 16 bytes.
__host__ __device__ __forceinline__ bool by_boxes(const GroupedProduct& p) {
  return p.n % 8 == 0 && p.out.dtype != DType::kF32;
}

struct Ring {
  Mbarrier full[kMaxStages], empty[kMaxStages];
};

using Tile = GroupedTile;

template <typename T, int kTokens, bool kTransposed, bool kBlocks>
__device__ __forceinline__ void copy_tile(const GroupedProduct& p, const CUtensorMap& w, const CUtensorMap& x,
                                          const Tile& tile, int steps, uint32_t& turn, uint32_t stages, Ring& ring) {
  const int boxes = (tile.rows + kBoxRows - 1) / kBoxRows;
  const int weights = tile.expert * static_cast<int>(p.n) + tile.column;
  for (int step = 0; step < steps; ++step, ++turn) {
    const uint32_t stage = turn % kStages<kTokens, kBlocks>, to = stages + stage * kStageBytes<kTokens>;
    const int k = step * (128 / static_cast<int>(sizeof(T)));
    ring.empty[stage].wait(turn / kStages<kTokens, kBlocks> % 2 ^ 1);
    ring.full[stage].arrive_expect(static_cast<uint32_t>(kPanelBytes + boxes * kBoxBytes));
    if constexpr (kTransposed) {
      unroll<2>([&](int group) {
        load_tile(to + group * kPanelBytes / 2, w, tile.expert, k, tile.column + group * 64, ring.full[stage]);
      });
    } else {
      load_tile(to, w, weights, k, ring.full[stage]);
    }
    for (int box = 0; box < boxes; ++box)
      load_tile(to + static_cast<uint32_t>(kPanelBytes + box * kBoxBytes), x, tile.row + box * kBoxRows, k,
                ring.full[stage]);
  }
}

// Scales in blocks of a tile's rows times that of its columns, by one warp into the scales of each stage. Of 16 rows,
// rows 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 lie side by side, as lanes with lane % 4 == q read them.
template <int kTokens>
__device__ __forceinline__ void write_scales(const GroupedProduct& p, const Tile& tile, int steps, uint32_t& turn,
                                             uint32_t scales, Ring& ring) {
  constexpr int kEach = kTokens / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* of_rows = p.x_scale + tile.row + lane;
  const float* of_columns = p.w_scale + (tile.expert * p.n + tile.column) / 128 * steps;
  float rows[kEach], column;
  const auto read = [&](int step) {
    column = of_columns[step];
    unroll<kEach>([&](int i) { rows[i] = lane + 32 * i < tile.rows ? of_rows[step * p.rows + 32 * i] : 0.0f; });
  };
  read(0);
  for (int step = 0; step < steps; ++step, ++turn) {
    const uint32_t stage = turn % kStages<kTokens, true>;
    float product[kEach];
    unroll<kEach>([&](int i) { product[i] = rows[i] * column; });
    if (step + 1 < steps) read(step + 1);
    ring.empty[stage].wait(turn / kStages<kTokens, true> % 2 ^ 1);
    unroll<kEach>([&](int i) {
      const int at = 32 * i + lane / 16 * 16 + lane % 8 / 2 * 4 + lane % 16 / 8 * 2 + lane % 2;
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(scales + stage * kScaleBytes + static_cast<uint32_t>(at * 4)),
                   "f"(product[i])
                   : "memory");
    });
    __syncwarp();
    if (lane == 0) ring.full[stage].arrive();
  }
}

// Scales of a warp's 16 columns of y, of lane / 4 and lane / 4 + 8, and of 2 kCount rows, lane by lane: read before the
// products, whose time hides theirs.
template <int kCount>
struct Scales {
  float columns[2], rows[kCount / 16];

  __device__ __forceinline__ Scales(const GroupedProduct& p, const Tile& tile, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (p.blocks) {  // the sums have theirs
      unroll<2>([&](int high) { columns[high] = 1; });
      unroll<kCount / 16>([&](int box) { rows[box] = 1; });
      return;
    }
    const float of_tensors = (p.x_scale != nullptr && !p.x_scale_rows ? *p.x_scale : 1.0f) *
                             (p.w_scale != nullptr && !p.w_scale_rows ? *p.w_scale : 1.0f);
    unroll<2>([&](int high) {
      const int at = tile.column + first + lane / 4 + 8 * high;
      columns[high] = p.w_scale_rows && at < p.n ? p.w_scale[tile.expert * p.n + at] * of_tensors : of_tensors;
    });
    unroll<kCount / 16>([&](int box) {
      const int row = box * kBoxRows + lane;
      rows[box] = p.x_scale_rows && row < tile.rows ? p.x_scale[tile.row + row] : 1.0f;
    });
  }
};

__device__ __forceinline__ float scaled(float sum, float of_row, float of_column) { return sum * of_row * of_column; }
__device__ __forceinline__ float scaled(int32_t sum, float of_row, float of_column) {
  return scale_sum(sum, of_row, of_column, 0, 0);
}

// A warp group's boxes in shared memory, taken in turn.
struct OutBoxes {
  uint32_t base;
  int next = 0;

  __device__ __forceinline__ uint32_t box() const { return base + static_cast<uint32_t>(next * kBoxBytes); }
  __device__ __forceinline__ void advance() { next = next + 1 < kOutBoxes ? next + 1 : 0; }
};

// Sums of a warp group, 64 columns of y from column `first` of the tile on by 2 kCount rows, times the scales, to their
// places. N is a multiple of 8. Boxes that end within the expert's rows are stored by TMA, a last one by hand: the rows
// behind it are another expert's.
template <typename To, typename Sum, int kCount>
__device__ __forceinline__ void store_sums(const GroupedProduct& p, const CUtensorMap& y, const Tile& tile, int first,
                                           const Scales<kCount>& scales, const Sum (&sums)[kCount], OutBoxes& boxes) {
  const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
  const int column = tile.column + first;
  // Of a lane: the piece of 8 columns, of the row in 16, that it gives the address of.
  const uint32_t in = wgmma::panel_offset(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
  uint32_t packed[2][4];
  const auto pack = [&](int box) {
    unroll<4>([&](int eight) {
      const Sum* of = sums + box * 16 + eight * 4;
      float of_row[2];
      unroll<2>([&](int c) { of_row[c] = __shfl_sync(kWholeWarp, scales.rows[box], eight * 8 + lane % 4 * 2 + c); });
      unroll<2>([&](int high) {
        const float of_column = scales.columns[high];
        packed[eight / 2][eight % 2 * 2 + high] =
            mma::pack<To>(scaled(of[2 * high], of_row[0], of_column), scaled(of[2 * high + 1], of_row[1], of_column));
      });
    });
  };
  pack(0);
#pragma unroll
  for (int box = 0; box < kCount / 16; ++box) {
    if (box * kBoxRows >= tile.rows) return;
    unroll<2>([&](int half) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(boxes.box() + in +
                                                                                                  half * 16 * 128),
                   "r"(packed[half][0]), "r"(packed[half][1]), "r"(packed[half][2]), "r"(packed[half][3])
                   : "memory");
    });
    if (box + 1 < kCount / 16) pack(box + 1);  // while the box is written
    wgmma::fence_shared();
    if (thread == 0) wait_stores<kOutBoxes - 2>();  // the next box has been read
    asm volatile("bar.sync %0, 128;\n" ::"r"(1 + static_cast<int>(threadIdx.x) / 128) : "memory");
    const int rows = tile.rows - box * kBoxRows;
    if (rows >= kBoxRows) {
      if (thread == 0) store_tile(boxes.box(), y, tile.row + box * kBoxRows, column);
    } else {
      const int row = thread / 8, piece = thread % 8;
      auto* to = static_cast<To*>(p.out.data) + (int64_t{tile.row} + box * kBoxRows + row) * p.n + column + piece * 8;
      unroll<2>([&](int part) {
        if (row + part * 16 >= rows || column + piece * 8 >= p.n) return;
        const auto from = boxes.box() + wgmma::panel_offset(row + part * 16, piece);
        *reinterpret_cast<uint4*>(to + part * 16 * p.n) = *static_cast<const uint4*>(__cvta_shared_to_generic(from));
      });
    }
    if (thread == 0) commit_stores();
    boxes.advance();
  }
}

// The same of any type and N, one by one.
template <typename Sum, int kCount>
__device__ __forceinline__ void store_each(const GroupedProduct& p, const Tile& tile, int first,
                                           const Scales<kCount>& scales, const Sum (&sums)[kCount]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unroll<kCount>([&](int i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, column = tile.column + first + lane / 4 + i % 4 / 2 * 8;
    const float of_row = __shfl_sync(kWholeWarp, scales.rows[i / 16], row % kBoxRows);
    if (row < tile.rows && column < p.n)
      store(p.out, (int64_t{tile.row} + row) * p.n + column, scaled(sums[i], of_row, scales.columns[i % 4 / 2]));
  });
}

// A step of products with scales in blocks: sums += part times the scales of its stage.
template <int kCount, typename Multiply, typename Release>
__device__ __forceinline__ void add_block(float (&sums)[kCount], uint32_t scales, Multiply multiply, Release release) {
  float part[kCount];
  float4 scale[kCount / 8];
  multiply(part);
  unroll<kCount / 8>([&](int i) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(scale[i].x), "=f"(scale[i].y), "=f"(scale[i].z), "=f"(scale[i].w)
                 : "r"(scales + i * 64 + threadIdx.x % 4 * 16));
  });
  wgmma::wait<0>();
  wgmma::pin(part);
  __syncwarp();
  release();
  unroll<kCount / 8, 2>([&](int i, int high) {
    const int at = i * 8 + high * 2;
    sums[at] = fmaf(part[at], scale[i].x, sums[at]), sums[at + 1] = fmaf(part[at + 1], scale[i].y, sums[at + 1]);
    sums[at + 4] = fmaf(part[at + 4], scale[i].z, sums[at + 4]);
    sums[at + 5] = fmaf(part[at + 5], scale[i].w, sums[at + 5]);
  });
}

// One of the multiplying warp groups: columns 64 group .. 64 group + 63 of the tile by 2 kCount rows of x.
template <typename T, int kTokens, bool kTransposed, bool kBlocks, int kCount>
__device__ __forceinline__ void multiply_tile(const GroupedProduct& p, const CUtensorMap& y, const Tile& tile,
                                              int steps, uint32_t& turn, uint32_t stages, uint32_t block_scales,
                                              OutBoxes& boxes, Ring& ring) {
  const int group = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32;
  const Scales<kCount> scales(p, tile, warp * 16);
  wgmma::Sum<T> sums[kCount] = {};  // left unset, the sums of all forms of this function would be live at once
  const auto release = [&](uint32_t of) {
    if (threadIdx.x % 32 == 0) ring.empty[of % kStages<kTokens, kBlocks>].arrive();
  };
  for (int step = 0; step < steps; ++step, ++turn) {
    const uint32_t stage = turn % kStages<kTokens, kBlocks>, at = stages + stage * kStageBytes<kTokens>;
    ring.full[stage].wait(turn / kStages<kTokens, kBlocks> % 2);
    const auto multiply = [&](auto& to) {
      wgmma::pin(to);
      wgmma::fence();
      unroll<4>([&](int k) {
        wgmma::multiply_rows<T, kTransposed>(
            to, wgmma::descriptor(at + group * 64 * 128 + k * (kTransposed ? 16 * 128 : 32)),
            wgmma::descriptor(at + kPanelBytes + k * 32), !kBlocks || k > 0);
      });
      wgmma::commit();
    };
    if constexpr (kBlocks) {
      add_block(sums, block_scales + stage * kScaleBytes, multiply, [&] { release(turn); });
    } else {
      multiply(sums);
      wgmma::wait<1>();
      if (step > 0) release(turn - 1);
    }
  }
  if constexpr (!kBlocks) {
    wgmma::wait<0>();
    wgmma::pin(sums);
    release(turn - 1);
  }
  if (!by_boxes(p)) {
    store_each(p, tile, warp * 16, scales, sums);
  } else if (p.out.dtype == DType::kBF16) {
    store_sums<bf16>(p, y, tile, group * 64, scales, sums, boxes);
  } else {
    store_sums<f16>(p, y, tile, group * 64, scales, sums, boxes);
  }
}

template <typename T, int kTokens, bool kTransposed, bool kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_wgmma_kernel(GroupedProduct p, const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                         const __grid_constant__ CUtensorMap y) {
  extern __shared__ __align__(1024) uint8_t shared_stages[];
  __shared__ Ring ring;
  __shared__ int lists[2][kListedExperts + 1];
  const GroupedRows<kTokens> all{lists[0], lists[1], p.experts};
  if (threadIdx.x == 32) {
    unroll<kStages<kTokens, kBlocks>>([&](int stage) {
      ring.full[stage].init(kBlocks ? 2 : 1);
      ring.empty[stage].init(kMultiplying / 32);
    });
    publish_barriers();
  }
  griddep_wait();
  griddep_launch_dependents();
  if (threadIdx.x < 32) all.list(p.offsets, static_cast<int>(threadIdx.x));
  __syncthreads();
  const int column_tiles = static_cast<int>((p.n + kColumns - 1) / kColumns),
            tiles = all.tiles[p.experts] * column_tiles;
  const int steps = static_cast<int>((p.k * static_cast<int64_t>(sizeof(T)) + 127) / 128);
  const uint32_t stages = shared_address(shared_stages),
                 behind = stages + kStages<kTokens, kBlocks> * kStageBytes<kTokens>,
                 block_scales = behind + kMultiplying / 128 * kOutBytes;
  uint32_t turn = 0;  // steps of all tiles so far: stages and phases of the barriers go on
  const auto for_tiles = [&](auto body) {
#pragma unroll 1
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x))
      body(all.at(t, column_tiles, kColumns));
  };
  if (threadIdx.x >= kMultiplying) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x == kMultiplying)
      for_tiles([&](const Tile& tile) {
        copy_tile<T, kTokens, kTransposed, kBlocks>(p, w, x, tile, steps, turn, stages, ring);
      });
    if (kBlocks && threadIdx.x >= kMultiplying + 32 && threadIdx.x < kMultiplying + 64)
      for_tiles([&](const Tile& tile) { write_scales<kTokens>(p, tile, steps, turn, block_scales, ring); });
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    OutBoxes boxes{behind + threadIdx.x / 128 * kOutBytes};
    for_tiles([&](const Tile& tile) {
      const auto multiply = [&]<int kCount>(std::integral_constant<int, kCount>) {
        if constexpr (2 * kCount <= kTokens)
          multiply_tile<T, kTokens, kTransposed, kBlocks, kCount>(p, y, tile, steps, turn, stages, block_scales, boxes,
                                                                  ring);
      };
      if (tile.rows <= 32) return multiply(std::integral_constant<int, 16>{});
      if (tile.rows <= 64) return multiply(std::integral_constant<int, 32>{});
      if (tile.rows <= 96) return multiply(std::integral_constant<int, 48>{});
      if (tile.rows <= 128) return multiply(std::integral_constant<int, 64>{});
      tile.rows <= 192 ? multiply(std::integral_constant<int, 96>{}) : multiply(std::integral_constant<int, 128>{});
    });
    wait_stores<0>();  // shared memory is read until here
  }
}

template <typename T, int kTokens, bool kTransposed, bool kBlocks = false>
void launch(const GroupedProduct& p, int sm_count, cudaStream_t stream) {
  const Grid grid{{static_cast<unsigned>(sm_count)},
                  kThreads,
                  kStages<kTokens, kBlocks> * (kStageBytes<kTokens> + (kBlocks ? kScaleBytes : 0)) +
                      kMultiplying / 128 * kOutBytes};
  const CUtensorMap w = kTransposed ? group_tiles(p.w, p.dtype, p.experts, p.k, p.n, 64)
                                    : row_tiles(p.w, p.dtype, p.experts * p.n, p.k, kColumns),
                    x = row_tiles(p.x, p.dtype, p.rows, p.k, kBoxRows);
  launch_overlapped(grouped_wgmma_kernel<T, kTokens, kTransposed, kBlocks>, grid, stream, p, w, x,
                    by_boxes(p) ? row_tiles(p.out.data, p.out.dtype, p.rows, p.n, kBoxRows) : CUtensorMap{});
}

}  // namespace

std::vector<GroupedPlan> candidates(const GroupedDesc& desc, const DeviceFacts&) {
  const GroupedPlan many = {desc.blocks ? 128 : 256}, few = {64};
  if (desc.rows <= 32 * desc.experts) return {few, many};
  return {many, few};
}

void launch_grouped_wgmma(const GroupedProduct& product, const GroupedPlan& plan, int sm_count, cudaStream_t stream) {
  const auto with_type = [&]<typename T, bool kTransposed = false>(T, std::bool_constant<kTransposed> = {}) {
    plan.tokens == 64 ? launch<T, 64, kTransposed>(product, sm_count, stream)
                      : launch<T, 256, kTransposed>(product, sm_count, stream);
  };
  if (product.blocks)
    return plan.tokens == 64 ? launch<e4m3, 64, false, true>(product, sm_count, stream)
                             : launch<e4m3, 128, false, true>(product, sm_count, stream);
  if (!product.trans_b) return with_type(bf16{}, std::true_type{});
  if (product.dtype == DType::kI8) return with_type(int8_t{});
  product.dtype == DType::kBF16 ? with_type(bf16{}) : with_type(e4m3{});
}

}  // namespace octet::cuda
