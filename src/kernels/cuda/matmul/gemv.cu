// Weights go from memory straight into tensor core fragments: 16 weight rows by 8 rows of x a product of mma.m16n8k16.
// A thread's 16 bytes of a row are two (bf16) or four (codes) steps of k; x is read alike, so that the order of k
// inside a chunk does not matter. Codes e4m3 become f16, which holds them exactly; sums are float32, int32 of int8
// codes. Partial sums of warps,
// then of a cluster's blocks (split-K through DSMEM), are added in a fixed order. Weights are read while the previous
// kernel still runs (PDL), where nothing writes them.
#include <cooperative_groups.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/common/grouped_rows.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/matmul/launchers.h"

namespace octet::cuda {
namespace {

constexpr int kTileRows = kGemvTileRows, kChunkBytes = kGemvChunkBytes;

__device__ __forceinline__ uint4 load_once(const std::byte* from) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from));
  return v;
}

// 16 bytes of rows g (low) and g + 8 (high) of the weights with 16 bytes of row g of x.
__device__ __forceinline__ void multiply(bf16, float (&sum)[4], const uint4& low, const uint4& high, const uint4& x) {
  mma::multiply_add(sum, {low.x, high.x, low.y, high.y}, x.x, x.y);
  mma::multiply_add(sum, {low.z, high.z, low.w, high.w}, x.z, x.w);
}
__device__ __forceinline__ void multiply(e4m3, float (&sum)[4], const uint4& low, const uint4& high, const uint4& x) {
  const auto halves = [](uint32_t codes) { return mma::halves<e4m3>(codes); };
  const auto word = [&](uint32_t l, uint32_t h, uint32_t y) {
    mma::multiply_add<f16>(sum, {halves(l), halves(h), halves(l >> 16), halves(h >> 16)}, halves(y), halves(y >> 16));
  };
  word(low.x, high.x, x.x), word(low.y, high.y, x.y), word(low.z, high.z, x.z), word(low.w, high.w, x.w);
}
__device__ __forceinline__ void multiply(int8_t, int32_t (&sum)[4], const uint4& low, const uint4& high,
                                         const uint4& x) {
  const auto words = [&](uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  };
  words(low.x, high.x, low.y, high.y, x.x, x.y), words(low.z, high.z, low.w, high.w, x.z, x.w);
}
template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;

__device__ float load_element(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
  if (dtype == DType::kBF16) return to_float(static_cast<const bf16*>(data)[i]);
  return to_float(static_cast<const f16*>(data)[i]);
}

__device__ void store_result(const Gemv& g, int64_t row, int64_t col, float value) {
  for (int p = 0; p < g.part_count; ++p) {
    const GemvPart& part = g.parts[p];
    if (col < part.begin || col >= part.end || part.out == nullptr) continue;
    const int64_t at = row * (part.end - part.begin) + col - part.begin;
    if (g.out_dtype == DType::kF32) static_cast<float*>(part.out)[at] = value;
    if (g.out_dtype == DType::kBF16) static_cast<bf16*>(part.out)[at] = from_float<bf16>(value);
    if (g.out_dtype == DType::kF16) static_cast<f16*>(part.out)[at] = from_float<f16>(value);
  }
}

// What the sums become: read before they are there.
struct Epilogue {
  float x_scale = 1, weight_scale = 1, c = 0, bias = 0;

  __device__ void read_weights(const Gemv& g, int64_t of_weights, int64_t col) {
    if (g.weight_scale != nullptr && !g.blocks) weight_scale = g.weight_scale[g.weight_scale_rows ? of_weights : 0];
    if (g.bias != nullptr) bias = load_element(g.bias, g.bias_dtype, col);
  }
  __device__ void read_rest(const Gemv& g, int64_t row, int64_t col) {
    if (g.x_scale != nullptr && !g.blocks) x_scale = g.x_scale[g.x_scale_rows ? row : 0];
    if (g.c != nullptr) c = load_element(g.c, g.out_dtype, row * g.n + col);
  }
  __device__ float operator()(float sum) const { return sum * x_scale * weight_scale + c + bias; }
  __device__ float operator()(int32_t sum) const { return scale_sum(sum, x_scale, weight_scale, c, bias); }
};

// A thread's share of one chunk of 128 bytes along K: of the rows g and g + 8 of every tile.
template <int kTiles>
struct Weights {
  uint4 at[kTiles][2][2];  // [tile][half of the chunk][rows g, g + 8]

  __device__ void read(const Gemv& g, const std::byte* weights, int64_t row_bytes, int64_t byte, int64_t first) {
#pragma unroll
    for (int half = 0; half < 2; ++half, byte += kChunkBytes / 2) {
      unroll<kTiles, 2>([&](int tile, int high) {
        const int64_t row = tile * kTileRows + high * 8;
        const bool inside = byte < row_bytes && first + row < g.n;
        at[tile][half][high] = inside ? load_once(weights + row * row_bytes + byte) : uint4{};
      });
    }
  }
};

// Grid: blocks of kTiles * 16 weight rows, by splits (a cluster), by experts that have rows.
template <typename T, int kTiles, bool kBlocks, bool kExperts>
__global__ __launch_bounds__(32 * kMaxGemvWarps) void gemv_kernel(const __grid_constant__ Gemv g) {
  constexpr int kRows = kTiles * kTileRows, kResults = kRows * static_cast<int>(kGemvRows);
  constexpr int kAhead = kTiles == 1 ? 4 : 2;  // chunks in flight
  constexpr int kPerThread = kResults / (32 * kMinGemvWarps);
  __shared__ Sum<T> partial[kMaxGemvWarps][kResults];
  __shared__ Sum<T> total[kResults];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5, group = lane >> 2, piece = lane & 3;
  const int64_t row_bytes = g.k * static_cast<int64_t>(sizeof(T)), first = int64_t{blockIdx.x} * kRows;
  GroupedTile rows{0, 0, static_cast<int>(g.m), 0};
  if constexpr (kExperts) {
    griddep_wait();
    griddep_launch_dependents();
    rows = GroupedRows<static_cast<int>(kGemvRows)>::find(g.offsets, g.experts, static_cast<int>(blockIdx.z), lane);
    if (rows.rows == 0) return;
  }
  const int64_t m = rows.rows;
  const std::byte* x = static_cast<const std::byte*>(g.x) + (rows.row + group) * row_bytes;
  const std::byte* weights = static_cast<const std::byte*>(g.weights) + (rows.expert * g.n + first + group) * row_bytes;
  const bool has_x = group < m;
  const auto for_results = [&](auto body) {
    unroll<kPerThread>([&](int n) {
      const int i = static_cast<int>(threadIdx.x + n * blockDim.x);
      const int64_t row = i / kRows, col = first + i % kRows;
      if (i < kResults && row < m && col < g.n) body(n, i, rows.row + row, col);
    });
  };

  Epilogue epilogue[kPerThread];
  Weights<kTiles> w[kAhead];
  const int64_t stride = int64_t{gridDim.y} * warps * kChunkBytes;
  int64_t at = (int64_t{blockIdx.y} * warps + warp) * kChunkBytes;
  const auto read_weights = [&] {
    unroll<kAhead>([&](int i) { w[i].read(g, weights, row_bytes, at + i * stride + piece * 16, first + group); });
  };
  const auto read_constants = [&] {
    read_weights();
    for_results([&](int n, int, int64_t, int64_t col) { epilogue[n].read_weights(g, rows.expert * g.n + col, col); });
  };
  if constexpr (kExperts) {
    read_constants();
  } else {
    griddep_launch_dependents();
    if (g.weights_ready) read_constants();
    griddep_wait();
    if (!g.weights_ready) read_constants();
  }
  for_results([&](int n, int, int64_t row, int64_t col) { epilogue[n].read_rest(g, row, col); });

  Sum<T> sum[kTiles][4] = {};
  while (at < row_bytes) {
    uint4 y[kAhead][2];
    unroll<kAhead, 2>([&](int i, int half) {
      const int64_t byte = at + i * stride + half * (kChunkBytes / 2) + piece * 16;
      y[i][half] = byte < row_bytes && has_x ? *reinterpret_cast<const uint4*>(x + byte) : uint4{};
    });
    float x_scale[kAhead][2], w_scale[kAhead][kTiles];
    if constexpr (kBlocks) {  // a chunk is a block of 128 along K
      const int64_t k_blocks = (g.k + 127) / 128;
      unroll<kAhead>([&](int i) {
        const int64_t block = (at + i * stride) / kChunkBytes;
        unroll<2>([&](int j) {
          const bool exists = block < k_blocks && piece * 2 + j < m;
          x_scale[i][j] = exists ? g.x_scale[block * g.m + rows.row + piece * 2 + j] : 0.0f;
        });
        unroll<kTiles>([&](int tile) {
          const int64_t row = rows.expert * g.n + min(first + tile * kTileRows, g.n - 1);
          w_scale[i][tile] = block < k_blocks ? g.weight_scale[row / 128 * k_blocks + block] : 0.0f;
        });
      });
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if constexpr (kBlocks) {
        unroll<kTiles>([&](int tile) {
          float part[4] = {};
          unroll<2>([&](int half) { multiply(T{}, part, w[i].at[tile][half][0], w[i].at[tile][half][1], y[i][half]); });
          unroll<4>([&](int j) { sum[tile][j] = fmaf(part[j], w_scale[i][tile] * x_scale[i][j & 1], sum[tile][j]); });
        });
      } else {
        unroll<2, kTiles>([&](int half, int tile) {
          multiply(T{}, sum[tile], w[i].at[tile][half][0], w[i].at[tile][half][1], y[i][half]);
        });
      }
    }
    at += kAhead * stride;
    if (at < row_bytes) read_weights();
  }

  // Fragment: rows g and g + 8 of the tile by rows 2 piece and 2 piece + 1 of x.
  unroll<kTiles, 4>([&](int tile, int j) {
    const int col = tile * kTileRows + group + (j >> 1) * 8, row = piece * 2 + (j & 1);
    partial[warp][row * kRows + col] = sum[tile][j];
  });
  __syncthreads();
  const auto warp_total = [&](int i) {
    Sum<T> value = 0;
    for (int other = 0; other < warps; ++other) value += partial[other][i];
    return value;
  };
  if (gridDim.y == 1) {
    for_results([&](int n, int i, int64_t row, int64_t col) { store_result(g, row, col, epilogue[n](warp_total(i))); });
    return;
  }
  const auto cluster = cooperative_groups::this_cluster();
  for_results([&](int, int i, int64_t, int64_t) { total[i] = warp_total(i); });
  cluster.sync();
  if (cluster.block_rank() == 0) {
    for_results([&](int n, int i, int64_t row, int64_t col) {
      Sum<T> value = 0;
      for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank) value += *cluster.map_shared_rank(&total[i], rank);
      store_result(g, row, col, epilogue[n](value));
    });
  }
  cluster.sync();  // DSMEM of a block is read until here
}

template <typename T, int kTiles, bool kBlocks, bool kExperts>
void launch(const Gemv& gemv, const GemvPlan& plan, cudaStream_t stream) {
  const auto splits = static_cast<unsigned>(plan.splits);
  const auto experts = static_cast<unsigned>(kExperts ? std::min<int64_t>(gemv.experts, gemv.m) : 1);
  const Grid grid{
      {static_cast<unsigned>(plan.grid), splits, experts}, static_cast<unsigned>(32 * plan.warps), 0, {1, splits}};
  launch_overlapped(gemv_kernel<T, kTiles, kBlocks, kExperts>, grid, stream, gemv);
}

}  // namespace

void launch_gemv(const Gemv& gemv, const GemvPlan& plan, cudaStream_t stream) {
  const auto with_tiles = [&]<typename T, bool kBlocks, bool kExperts>(T, std::bool_constant<kBlocks>,
                                                                       std::bool_constant<kExperts>) {
    plan.tiles == 2 ? launch<T, 2, kBlocks, kExperts>(gemv, plan, stream)
                    : launch<T, 1, kBlocks, kExperts>(gemv, plan, stream);
  };
  const std::true_type yes;
  const std::false_type no;
  const bool bf16_weights = gemv.dtype == DType::kBF16;
  const bool int8_weights = gemv.dtype == DType::kI8;
  if (gemv.offsets != nullptr) {
    if (int8_weights) return with_tiles(int8_t{}, no, yes);
    if (bf16_weights) return with_tiles(bf16{}, no, yes);
    return gemv.blocks ? with_tiles(e4m3{}, yes, yes) : with_tiles(e4m3{}, no, yes);
  }
  if (bf16_weights) return with_tiles(bf16{}, no, no);
  if (int8_weights) return with_tiles(int8_t{}, no, no);
  gemv.blocks ? with_tiles(e4m3{}, yes, no) : with_tiles(e4m3{}, no, no);
}

}  // namespace octet::cuda
