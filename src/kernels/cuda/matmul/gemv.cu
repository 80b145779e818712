// Weights go from memory straight into tensor core fragments: 16 weight rows by 8 rows of x a product of mma.m16n8k16.
// A thread's 16 bytes of a row are two (bf16) or four (codes) steps of k; x is read alike, so that the order of k
// inside a chunk does not matter. Codes become f16, which holds them exactly; sums are float32. Partial sums of warps,
// then of a cluster's blocks, are added in a fixed order.
//
// A block takes tile after tile; a chunk's registers are filled again as soon as it is used up, across the ends of
// tiles, so that the same number of loads is always under way. The first are, where nothing writes the weights, before
// the kernel in front has ended.
#include <cooperative_groups.h>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matmul/gemv.h"

namespace octet::cuda {
namespace {

constexpr int kTileRows = 16, kChunkBytes = 128, kFewestWarps = 4, kMostWarps = 16;
constexpr int kResidentBlocks = 2;  // of a multiprocessor; leaves room for the blocks of the next kernels

__device__ __forceinline__ uint4 load_once(const std::byte* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ void multiply_bf16(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                              uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_f16(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two codes as two f16.
__device__ __forceinline__ uint32_t decode(uint32_t codes) {
  uint32_t y;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(static_cast<uint16_t>(codes)));
  return y;
}

// 16 bytes of rows g (low) and g + 8 (high) of the weights with 16 bytes of row g of x.
__device__ __forceinline__ void multiply(bf16, float (&sum)[4], const uint4& low, const uint4& high, const uint4& x) {
  multiply_bf16(sum, low.x, high.x, low.y, high.y, x.x, x.y);
  multiply_bf16(sum, low.z, high.z, low.w, high.w, x.z, x.w);
}
__device__ __forceinline__ void multiply(e4m3, float (&sum)[4], const uint4& low, const uint4& high, const uint4& x) {
  const auto word = [&](uint32_t l, uint32_t h, uint32_t y) {
    multiply_f16(sum, decode(l), decode(h), decode(l >> 16), decode(h >> 16), decode(y), decode(y >> 16));
  };
  word(low.x, high.x, x.x), word(low.y, high.y, x.y), word(low.z, high.z, x.z), word(low.w, high.w, x.w);
}

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

// What the sums become: read while they are being made.
struct Epilogue {
  float x_scale = 1, weight_scale = 1, c = 0, bias = 0;

  __device__ void read(const Gemv& g, int64_t row, int64_t col) {
    if (g.x_scale != nullptr && !g.blocks) x_scale = g.x_scale[g.x_scale_rows ? row : 0];
    if (g.weight_scale != nullptr && !g.blocks) weight_scale = g.weight_scale[g.weight_scale_rows ? col : 0];
    if (g.c != nullptr) c = load_element(g.c, g.out_dtype, row * g.n + col);
    if (g.bias != nullptr) bias = load_element(g.bias, g.bias_dtype, col);
  }
  __device__ float operator()(float sum) const { return sum * x_scale * weight_scale + c + bias; }
};

// A thread's share of one chunk of 128 bytes along K: of the rows g and g + 8 of a tile.
struct Weights {
  uint4 at[2][2];  // [half of the chunk][rows g, g + 8]

  // From `byte` on; the first row begins at `from`, `rows` are left of the matrix.
  __device__ __forceinline__ void read(const std::byte* from, int row_bytes, int byte, int rows) {
#pragma unroll
    for (int half = 0; half < 2; ++half, byte += kChunkBytes / 2) {
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const bool inside = byte < row_bytes && high * 8 < rows;
        at[half][high] = inside ? load_once(from + high * 8 * row_bytes + byte) : uint4{};
      }
    }
  }
};

// A tile: 16 weight rows. Grid: blocks that take every gridDim.x-th tile, by splits (a cluster).
template <typename T, bool kBlocks>
__global__ __launch_bounds__(32 * kMostWarps) void gemv_kernel(const __grid_constant__ Gemv g) {
  constexpr int kResults = kTileRows * static_cast<int>(kGemvRows);
  constexpr int kAhead = 4;  // chunks in flight
  constexpr int kPerThread = kResults / (32 * kFewestWarps);
  __shared__ float partial[kMostWarps][kResults];
  __shared__ float total[kResults];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5, group = lane >> 2, piece = lane & 3;
  const int row_bytes = static_cast<int>(g.k) * static_cast<int>(sizeof(T)), rows = static_cast<int>(g.n);
  const int tile_step = static_cast<int>(gridDim.x) * kTileRows;
  const int stride = static_cast<int>(gridDim.y) * warps * kChunkBytes, round = kAhead * stride;
  const int begin = (static_cast<int>(blockIdx.y) * warps + warp) * kChunkBytes;  // of this warp's chunks in a row

  // What is read next: kAhead chunks from `ahead` on of the tile at row `tile_ahead`.
  Weights w[kAhead];
  int ahead = begin, tile_ahead = static_cast<int>(blockIdx.x) * kTileRows;
  const auto read_ahead = [&](int i) {
    const int row = tile_ahead + group;
    w[i].read(static_cast<const std::byte*>(g.weights) + static_cast<int64_t>(row) * row_bytes, row_bytes,
              ahead + i * stride + piece * 16, rows - row);
  };
  const auto go_ahead = [&] {
    ahead += round;
    if (ahead >= row_bytes) ahead = begin, tile_ahead += tile_step;
  };
  allow_next();
  if (g.weights_ready) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) read_ahead(i);
  }
  wait_for_previous();
  if (!g.weights_ready) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) read_ahead(i);
  }
  go_ahead();

  const std::byte* x = static_cast<const std::byte*>(g.x) + static_cast<int64_t>(group) * row_bytes;
  uint4 y[2][2];  // of the chunk at hand and the next: [turn][half]
  const auto read_x = [&](int i, int byte) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = byte + half * (kChunkBytes / 2) + piece * 16;
      y[i % 2][half] = from < row_bytes && group < g.m ? *reinterpret_cast<const uint4*>(x + from) : uint4{};
    }
  };
#pragma unroll 1
  for (int first = static_cast<int>(blockIdx.x) * kTileRows; first < rows; first += tile_step) {
    const auto for_results = [&](auto body) {
#pragma unroll
      for (int n = 0; n < kPerThread; ++n) {
        const int i = static_cast<int>(threadIdx.x + n * blockDim.x);
        const int row = i / kTileRows, col = first + i % kTileRows;
        if (i < kResults && row < g.m && col < rows) body(n, i, row, col);
      }
    };
    Epilogue epilogue[kPerThread];
    for_results([&](int n, int, int row, int col) { epilogue[n].read(g, row, col); });

    float sum[4] = {};
    read_x(0, begin);
#pragma unroll 1
    for (int at = begin; at < row_bytes; at += round) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        read_x(i + 1, at + (i + 1) * stride);
        if constexpr (kBlocks) {  // a chunk is a block of 128 along K
          const int k_blocks = (row_bytes + kChunkBytes - 1) / kChunkBytes;
          const int block = min((at + i * stride) / kChunkBytes, k_blocks - 1);
          float x_scale[2];
#pragma unroll
          for (int j = 0; j < 2; ++j)
            x_scale[j] = piece * 2 + j < g.m ? g.x_scale[(piece * 2 + j) * k_blocks + block] : 0.0f;
          float part[4] = {};
#pragma unroll
          for (int half = 0; half < 2; ++half) multiply(T{}, part, w[i].at[half][0], w[i].at[half][1], y[i % 2][half]);
          const float scale = g.weight_scale[first / 128 * k_blocks + block];
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[j] = fmaf(part[j], scale * x_scale[j & 1], sum[j]);
        } else {
#pragma unroll
          for (int half = 0; half < 2; ++half) multiply(T{}, sum, w[i].at[half][0], w[i].at[half][1], y[i % 2][half]);
        }
        read_ahead(i);
      }
      go_ahead();
    }

    // Fragment: rows g and g + 8 by rows 2 piece and 2 piece + 1 of x.
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int col = group + (j >> 1) * 8, row = piece * 2 + (j & 1);
      partial[warp][row * kTileRows + col] = sum[j];
    }
    __syncthreads();
    const auto warp_total = [&](int i) {
      float value = 0;
      for (int other = 0; other < warps; ++other) value += partial[other][i];
      return value;
    };
    if (gridDim.y == 1) {
      for_results([&](int n, int i, int row, int col) { store_result(g, row, col, epilogue[n](warp_total(i))); });
      __syncthreads();  // before the next tile's
      continue;
    }
    const auto cluster = cooperative_groups::this_cluster();
    for_results([&](int, int i, int, int) { total[i] = warp_total(i); });
    cluster.sync();
    if (cluster.block_rank() == 0) {
      for_results([&](int n, int i, int row, int col) {
        float value = 0;
        for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank) value += *cluster.map_shared_rank(&total[i], rank);
        store_result(g, row, col, epilogue[n](value));
      });
    }
    cluster.sync();  // the others' memory stays until it has been read
  }
}

template <typename T, bool kBlocks>
void launch(const Gemv& gemv, const GemvShape& shape, cudaStream_t stream) {
  const auto splits = static_cast<unsigned>(shape.splits);
  const Grid grid{
      {static_cast<unsigned>(shape.blocks), splits}, static_cast<unsigned>(32 * shape.warps), 0, {1, splits}};
  launch_overlapped(gemv_kernel<T, kBlocks>, grid, stream, gemv);
}

}  // namespace

// Measured on an H200, back to back: 8 warps a block and two blocks a multiprocessor, more warps where rows are few;
// four chunks for every warp at least, or their loads are empty.
GemvShape gemv_shape(const Gemv& gemv, int sm_count) {
  const int64_t tiles = (gemv.n + kTileRows - 1) / kTileRows;
  const int64_t chunks = (gemv.k * dtype_bytes(gemv.dtype) + kChunkBytes - 1) / kChunkBytes;
  GemvShape shape;
  shape.warps = 2 * tiles <= sm_count ? 16 : 8;
  while (shape.warps > kFewestWarps && chunks < 4 * shape.warps) shape.warps /= 2;
  while (shape.splits < 4 && 4 * tiles * shape.splits <= sm_count && chunks >= 8 * shape.splits * shape.warps)
    shape.splits *= 2;
  // Equal numbers of tiles a block, in as many blocks as are resident at once.
  const int64_t resident = kResidentBlocks * int64_t{sm_count}, rounds = (tiles + resident - 1) / resident;
  shape.blocks = static_cast<int>((tiles + rounds - 1) / rounds);
  return shape;
}

void launch_gemv(const Gemv& gemv, const GemvShape& shape, cudaStream_t stream) {
  if (gemv.dtype == DType::kBF16) return launch<bf16, false>(gemv, shape, stream);
  gemv.blocks ? launch<e4m3, true>(gemv, shape, stream) : launch<e4m3, false>(gemv, shape, stream);
}

}  // namespace octet::cuda
