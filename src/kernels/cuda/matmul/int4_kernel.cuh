// Weights of 4 bits times x: y^T = W x^T, so that the codes become the left operand of wgmma, in registers, and x the
// right one, in shared memory.
//
// A block makes 128 columns of y for kTokens rows: two warp groups multiply, 64 columns each; one thread of a warp
// copies tiles by TMA: codes and scales as they lie, x swizzled. Sums of a group of K are scaled into the sums of all.
// The blocks of a cluster share K; each joins a share of their sums, in order. Of a grouped product there are blocks for
// any split of the rows among the experts: each finds its own from the offsets, those beyond the last end.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/matmul/int4.h"
#include "kernels/cuda/matmul/int4_fragments.cuh"

namespace octet::cuda::int4 {

inline constexpr int kMultiplying = 256;
// Registers go from the copying warps to the multiplying ones by whole warp groups.
constexpr int threads(int tokens) { return kMultiplying + (tokens <= 32 ? 32 : 128); }
inline constexpr int kRows = static_cast<int>(kInt4Rows), kDepth = static_cast<int>(kInt4Depth);
inline constexpr int kCodeBytes = kRows * kDepth / 2, kMaxStages = 8;
inline constexpr int kSumStride = kRows + 4;  // floats, of a row of x, where blocks join

template <typename T>  // of x, e4m3 or bf16
inline constexpr DType kType = sizeof(T) == 1 ? DType::kE4M3 : DType::kBF16;
template <typename T, int kTokens, int kGroup>
struct Shape {
  static constexpr int kGroups = kDepth / kGroup;  // of a tile
  static constexpr int kXBytes = kTokens * kDepth * static_cast<int>(sizeof(T));
  static constexpr int kScaleBytes = kGroups * kRows * 4, kZeroBytes = kGroups * kRows;
  static constexpr int kStageBytes = static_cast<int>(int4_stage_bytes(kTokens, kType<T>, kGroup));
  static constexpr int kSumBytes = kTokens * kSumStride * 4;
  static constexpr int bytes(int stages) {
    return (stages * kStageBytes > kSumBytes ? stages * kStageBytes : kSumBytes) + 1024;
  }
};

// Rows [first, end) of x, of which a block has the first kTokens, and the expert whose they are.
struct RowTile {
  int expert, first, end;
};
// Tile t of the experts' rows, one expert after the other; beyond the last, none. By one warp.
template <int kTokens>
__device__ __forceinline__ void find_tile(const Int4Product& p, int t, RowTile& found) {
  const int lane = static_cast<int>(threadIdx.x) % 32, each = (p.experts + 31) / 32;
  const auto begin = [&](int i) { return p.offsets[min(lane * each + i, p.experts)]; };
  const auto tiles = [&](int i) { return (begin(i + 1) - begin(i) + kTokens - 1) / kTokens; };
  int of_lane = 0;
#pragma unroll 4
  for (int i = 0; i < each; ++i) of_lane += tiles(i);
  int until = of_lane;
  unroll<5>([&](int n) {
    const int other = __shfl_up_sync(kWholeWarp, until, 1 << n);
    if (lane >= 1 << n) until += other;
  });
  int before = until - of_lane;
  if (lane == 31 && t >= until) found = {0, 0, 0};
  if (t < before || t >= until) return;
  int i = 0;
  while (t >= before + tiles(i)) before += tiles(i++);
  found = {lane * each + i, begin(i) + (t - before) * kTokens, begin(i + 1)};
}

struct Stage {
  uint32_t x, codes, scales, zeros;  // shared addresses
};
template <typename S>
__device__ __forceinline__ Stage stage_at(uint32_t base, int stage) {
  const uint32_t x = base + static_cast<uint32_t>(stage * S::kStageBytes);
  return {x, x + S::kXBytes, x + S::kXBytes + kCodeBytes, x + S::kXBytes + kCodeBytes + S::kScaleBytes};
}

template <typename V>
__device__ __forceinline__ V load_shared(uint32_t address) {
  return *static_cast<const V*>(__cvta_shared_to_generic(address));
}
__device__ __forceinline__ void bulk_load_at(uint32_t to, const void* from, uint32_t bytes, Mbarrier& barrier) {
  bulk_load(__cvta_shared_to_generic(to), from, bytes, barrier);
}

// Codes, scales and zeros of a tile.
template <typename S>
__device__ __forceinline__ void copy_weights(const Int4Product& p, int64_t row_tile, int64_t step, const Stage& to,
                                             Mbarrier& full) {
  const int64_t steps = p.k / kDepth, group = p.group == p.k ? 0 : step * S::kGroups;
  full.arrive_expect(
      static_cast<uint32_t>(S::kXBytes + kCodeBytes + S::kScaleBytes + (p.zeros != nullptr ? S::kZeroBytes : 0)));
  bulk_load_at(to.codes, static_cast<const std::byte*>(p.codes) + (row_tile * steps + step) * kCodeBytes, kCodeBytes,
               full);
  for (int g = 0; g < S::kGroups; ++g) {
    const int64_t at = (group + g) * p.n * p.experts + row_tile * kRows;
    bulk_load_at(to.scales + static_cast<uint32_t>(g * kRows * 4), p.scales + at, kRows * 4, full);
    if (p.zeros != nullptr) bulk_load_at(to.zeros + static_cast<uint32_t>(g * kRows), p.zeros + at, kRows, full);
  }
}

// Rows [first, first + kTokens) of x in K [128 step, ..), swizzled; rows that do not exist become zeros.
template <typename T, int kTokens>
__device__ __forceinline__ void copy_x(const CUtensorMap& x, int first, int step, uint32_t to, Mbarrier& full) {
  unroll<sizeof(T)>([&](int panel) {
    load_tile(to + static_cast<uint32_t>(panel * kTokens * 128), x, first, step * kDepth + panel * 64, full);
  });
}

// What a lane has of a tile's codes: by 32 of K, of rows g and g + 8.
struct Codes {
  uint32_t at[4][2];

  __device__ __forceinline__ void read(uint32_t codes) {
    unroll<2>([&](int piece) {
      const auto four = load_shared<uint4>(codes + static_cast<uint32_t>(piece * 2048));
      at[2 * piece][0] = four.x, at[2 * piece][1] = four.y, at[2 * piece + 1][0] = four.z,
             at[2 * piece + 1][1] = four.w;
    });
  }
};

// The left operands of kUnit of K, and the scales of rows g and g + 8.
template <typename T, int kUnit>
struct Fragments {
  static constexpr int kProducts = kUnit * static_cast<int>(sizeof(T)) / 32;
  uint32_t a[kProducts][4];
  float scale[2];

  // `unit` of a tile, of group `group`.
  template <bool kZeros>
  __device__ __forceinline__ void make(const Codes& codes, const Stage& tile, int unit, int group, int row,
                                       const Unpack<T, kZeros>& unpack) {
    constexpr int kChunks = kUnit / 32, kWords = 2 * kProducts / kChunks;
    const auto at = static_cast<uint32_t>(group * kRows + row);
    unroll<2>([&](int high) {
      scale[high] = load_shared<float>(tile.scales + (at + 8 * high) * 4);
      const auto of_row = unpack.row(kZeros ? load_shared<int8_t>(tile.zeros + at + 8 * high) + 8 : 8);
      unroll<kChunks>([&](int n) {
        uint32_t words[kWords];
        unpack(of_row, codes.at[unit * kChunks + n][high], words);
        unroll<kWords>([&](int w) { a[(n * kWords + w) / 2][w % 2 * 2 + high] = words[w]; });
      });
    });
  }
};

// A warp group's share of the tiles, by units of K. Fragments of a unit are made while the one before is multiplied, in
// two halves of the rows of x, where there are many: while one is scaled, the other is multiplied.
template <typename T, int kTokens, int kGroup, bool kZeros>
__device__ __forceinline__ void multiply_tiles(uint32_t base, int stages, int steps, Mbarrier* full, Mbarrier* empty,
                                               const uint32_t* constants, float (&sums)[kTokens / 2]) {
  using S = Shape<T, kTokens, kGroup>;
  constexpr int kMostUnit = 128 / static_cast<int>(sizeof(T)), kUnit = kGroup < kMostUnit ? kGroup : kMostUnit;
  constexpr int kUnits = kDepth / kUnit, kOfGroup = kGroup / kUnit;
  constexpr int kHalves = kTokens >= 64 ? 2 : 1, kCount = kTokens / 2 / kHalves;
  using F = Fragments<T, kUnit>;
  const int thread = static_cast<int>(threadIdx.x) % 128, side = static_cast<int>(threadIdx.x) / 128;
  const int lane = thread % 32, row = side * 64 + thread / 32 * 16 + lane / 4;
  const uint64_t descriptors = wgmma::descriptor(base);  // of x of stage 0
  const Unpack<T, kZeros> unpack(constants);
  float part[kHalves][kCount];
  Codes codes;
  F first, second;
  int stage = 0, phase = 0;
  const auto make = [&](F& f, int unit) {
    if (unit == 0) {
      full[stage].wait(static_cast<uint32_t>(phase));
      codes.read(stage_at<S>(base, stage).codes + static_cast<uint32_t>(side * kCodeBytes / 2 + thread * 16));
    }
    f.make(codes, stage_at<S>(base, stage), unit, unit / kOfGroup, row, unpack);
  };
  const auto start = [&](const F& f, int unit, int half) {
    const uint64_t x = descriptors + static_cast<uint64_t>(stage * (S::kStageBytes / 16));
    wgmma::pin(part[half]);
    wgmma::fence();
    unroll<F::kProducts>([&](int i) {
      const int byte = (unit * F::kProducts + i) * 32;  // along K, of a row of x
      wgmma::multiply_registers<T>(
          part[half], f.a[i],
          x + static_cast<uint64_t>((half * kCount * 256 + byte / 128 * kTokens * 128 + byte % 128) / 16),
          i > 0 || unit % kOfGroup > 0 ? 1 : 0);
    });
    wgmma::commit();
  };
  const auto end = [&](const F& f, int unit, int half, int of) {
    wgmma::pin(part[half]);
    if (unit == kUnits - 1 && half == kHalves - 1) {
      __syncwarp();
      if (lane == 0) empty[of].arrive();
    }
    if (unit % kOfGroup < kOfGroup - 1) return;
    unroll<kCount>([&](int e) {
      float& sum = sums[half * kCount + e];
      sum = fmaf(f.scale[e % 4 / 2], part[half][e], sum);
    });
  };
  // From a unit under way to the next.
  const auto go_on = [&](const F& now, F& next, int unit) {
    const int of = stage, next_unit = (unit + 1) % kUnits;
    if (next_unit == 0 && ++stage == stages) stage = 0, phase ^= 1;
    make(next, next_unit);
    unroll<kHalves>([&](int half) {
      wgmma::wait<kHalves - 1>();
      end(now, unit, half, of);
      start(next, next_unit, half);
    });
  };
  const auto finish = [&](const F& now) {
    wgmma::wait<0>();
    unroll<kHalves>([&](int half) { end(now, kUnits - 1, half, stage); });
  };
  make(first, 0);
  unroll<kHalves>([&](int half) { start(first, 0, half); });
  if constexpr (kUnits > 1) {
#pragma unroll 1
    for (int step = 1; step < steps; ++step)
      unroll<kUnits / 2>([&](int n) { go_on(first, second, 2 * n), go_on(second, first, 2 * n + 1); });
    unroll<kUnits / 2>([&](int n) {
      go_on(first, second, 2 * n);
      if (2 * n + 2 < kUnits) go_on(second, first, 2 * n + 1);
    });
    finish(second);
  } else {
#pragma unroll 1
    for (int step = 2; step < steps; step += 2) go_on(first, second, 0), go_on(second, first, 0);
    if (steps % 2 == 0) {
      go_on(first, second, 0);
      finish(second);
    } else {
      finish(first);
    }
  }
}

// What the sums of four neighbouring columns of a row of y become.
struct Epilogue {
  float scale = 1, c[4] = {}, bias[4] = {};

  Epilogue() = default;
  __device__ __forceinline__ Epilogue(const Int4Product& p, int64_t row, int64_t col) {
    if (p.x_scale != nullptr) scale = p.x_scale[p.x_scale_rows ? row : 0];
    if (p.c != nullptr) load({const_cast<void*>(p.c), p.out_dtype}, row * p.n + col, c);
    if (p.bias != nullptr) load({const_cast<void*>(p.bias), p.bias_dtype}, col, bias);
  }
};
__device__ __forceinline__ void store_result(const Int4Product& p, int64_t row, int64_t col, float4 sum,
                                             const Epilogue& epilogue) {
  float y[4] = {sum.x, sum.y, sum.z, sum.w};
  unroll<4>([&](int i) { y[i] = y[i] * epilogue.scale + epilogue.c[i] + epilogue.bias[i]; });
  for (int i = 0; i < p.part_count; ++i) {
    const GemvPart& part = p.parts[i];
    if (col < part.begin || col >= part.end || part.out == nullptr) continue;
    const int64_t at = row * (part.end - part.begin) + col - part.begin;
    store({part.out, p.out_dtype}, at, y);
  }
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
  float sums[kTokens / 2] = {};
  if (thread >= kMultiplying) {
    if constexpr (kTokens > 32) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
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
    __syncwarp();
    __syncthreads();
  } else {
    if constexpr (kTokens > 32) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    multiply_tiles<T, kTokens, kGroup, kZeros>(base, stages, steps, full, empty, constants, sums);
    griddep_wait();
    __syncthreads();  // nobody reads tiles any more
    const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    unroll<kTokens / 2>(
        [&](int e) { joined[(e / 4 * 8 + lane % 4 * 2 + e % 2) * kSumStride + row + e % 4 / 2 * 8] = sums[e]; });
  }
  constexpr int kFours = kTokens * kRows / 4;
  constexpr bool kFew = kTokens <= 32;  // latencies decide: loads of the first columns go ahead, those of sums at once
  const int begin = kFours * split / splits + thread, end = kFours * (split + 1) / splits;
  const auto read_epilogue = [&](int i) {
    return Epilogue(p, first + i / (kRows / 4), column + i % (kRows / 4) * 4);
  };
  Epilogue epilogue;
  if (kFew && begin < end && first + begin / (kRows / 4) < rows_end) epilogue = read_epilogue(begin);
  const auto cluster = cooperative_groups::this_cluster();
  splits > 1 ? cluster.sync() : __syncthreads();
#pragma unroll 1
  for (int i = begin; i < end; i += threads(kTokens)) {
    const int token = i / (kRows / 4), col = i % (kRows / 4) * 4;
    if (first + token >= rows_end) break;
    const auto part = [&](int rank) {
      float* from = joined + token * kSumStride + col;
      return *reinterpret_cast<const float4*>(splits > 1 ? cluster.map_shared_rank(from, rank) : from);
    };
    float4 sum = {0, 0, 0, 0};
    const auto join = [&](const float4& other) {
      sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    };
    if constexpr (kFew) {
      float4 parts[kInt4Splits];
      unroll<kInt4Splits>([&](int rank) {
        if (rank < splits) parts[rank] = part(rank);
      });
      unroll<kInt4Splits>([&](int rank) {
        if (rank < splits) join(parts[rank]);
      });
    } else {
      for (int rank = 0; rank < splits; ++rank) join(part(rank));
    }
    if (!kFew || i != begin) epilogue = read_epilogue(i);
    store_result(p, first + token, column + col, sum, epilogue);
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
  if (p.group == 32) return with_group(std::integral_constant<int, 32>{});
  if (p.group == 64) return with_group(std::integral_constant<int, 64>{});
  with_group(std::integral_constant<int, 128>{});
}

}  // namespace octet::cuda::int4
