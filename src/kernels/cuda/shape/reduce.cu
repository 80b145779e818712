// reduce: sum, max, amax over the rows of a matrix or over everything, in two stages of fixed order; segment_mean.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/common/column_sums.cuh"
#include "kernels/cuda/common/column_walk.cuh"
#include "kernels/cuda/shape/shape.h"

namespace octet::cuda {
namespace {

// partial [partial_rows, cols] of x [rows, cols]; kWhole: cols is a multiple of 16.
template <typename Kind, typename T, bool kWhole>
__global__ void __launch_bounds__(kTileThreads, sizeof(T) == 2 ? 4 : 2)
    reduce_rows_kernel(const T* x, float* partial, int64_t rows, int64_t cols, unsigned col_tiles) {
  __shared__ alignas(16) float scratch[kTile / kPartRows * kTile];
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row_tile = blockIdx.x / col_tiles, c0 = static_cast<int64_t>(blockIdx.x % col_tiles) * kTile;
  const int64_t row = row_tile * kTile + TilePart<T>::row();
  TilePart<T> part;
  part.template load<kWhole>(x, rows, cols, row_tile * kTile, c0);
  float held[kPartCols];
  unroll<kPartCols>([&](int k) {
    held[k] = Kind::kIdentity;
    unroll<kPartRows>([&](int r) {
      // Beyond the edges there are zeros; what comes of columns that do not exist is not kept.
      if (!std::is_same_v<Kind, MaxOf> || row + r < rows)
        held[k] = Kind::join(held[k], Kind::element(part.value(r, k)));
    });
  });
  join_columns<Kind>(held, scratch, partial + 2 * row_tile * cols + c0, cols, cols - c0);
}

// One block of threads for 128 columns of a segment.
constexpr int kMeanThreads = 128;

template <typename T>
__global__ void segment_mean_kernel(const T* x, int64_t rows, int64_t cols, const int32_t* starts, float* y) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kMeanThreads + threadIdx.x, segment = blockIdx.y;
  if (col >= cols) return;
  const int64_t begin = starts[segment] > 0 ? starts[segment] : 0;
  const int64_t end = starts[segment + 1] < rows ? starts[segment + 1] : rows;
  float sum = 0;
  for (int64_t row = begin; row < end; ++row) sum += to_float(x[row * cols + col]);
  y[segment * cols + col] = begin < end ? sum / static_cast<float>(end - begin) : 0.0f;
}

constexpr int64_t kMaxBlocks = 1056;     // 8 blocks on each of 132 processors
constexpr int kRun = 8, kAllUnroll = 4;  // elements of an access, accesses in flight

int64_t blocks_of(int64_t count) {
  return std::clamp<int64_t>(count / (kPointwiseThreads * kRun * kAllUnroll), 1, kMaxBlocks);
}

template <typename Kind>
__device__ __forceinline__ float join_block(float x) {
  __shared__ float scratch[8];
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes >>= 1) x = Kind::join(x, __shfl_xor_sync(kWholeWarp, x, lanes));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = scratch[0];
#pragma unroll
  for (int w = 1; w < 8; ++w) x = Kind::join(x, scratch[w]);
  return x;
}

// y of x: block b takes every gridDim-th step of 4 vectors a thread and leaves partial[b]; the last block to come joins
// them, in an order that depends on their number alone.
template <typename Kind, typename T>
__global__ void __launch_bounds__(kPointwiseThreads)
    reduce_all_kernel(const T* x, float* partial, uint32_t* arrivals, float* y, int64_t count) {
  __shared__ bool last;
  griddep_wait();
  griddep_launch_dependents();
  constexpr int64_t kLine = static_cast<int64_t>(kPointwiseThreads) * kRun, kStep = kLine * kAllUnroll;
  float held[kRun];
  unroll<kRun>([&](int k) { held[k] = Kind::kIdentity; });
  const int64_t mine = static_cast<int64_t>(threadIdx.x) * kRun;
  int64_t base = blockIdx.x * kStep;
  for (; base + kStep <= count; base += gridDim.x * kStep) {
    Vec<T, kRun> v[kAllUnroll];
    unroll<kAllUnroll>([&](int u) { v[u] = read<kRun>(x + base + u * kLine + mine); });
    unroll<kAllUnroll, kRun>([&](int u, int k) { held[k] = Kind::join(held[k], Kind::element(to_float(v[u].at[k]))); });
  }
  for (int64_t i = base + threadIdx.x; i < std::min(base + kStep, count); i += kPointwiseThreads)
    held[0] = Kind::join(held[0], Kind::element(to_float(x[i])));
#pragma unroll
  for (int k = 1; k < kRun; ++k) held[0] = Kind::join(held[0], held[k]);
  float all = join_block<Kind>(held[0]);
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) {
      partial[blockIdx.x] = all;
      last = arrives_last(arrivals, gridDim.x);
    }
    __syncthreads();
    if (!last) return;
    all = Kind::kIdentity;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += kPointwiseThreads)
      all = Kind::join(all, *static_cast<volatile const float*>(partial + i));
    all = join_block<Kind>(all);
  }
  if (threadIdx.x == 0) *y = all;
}

template <typename Body>
void with_kind(Reduction kind, Body&& body) {
  switch (kind) {
    case Reduction::kSum: return body(SumOf{});
    case Reduction::kMax: return body(MaxOf{});
    case Reduction::kAmax: return body(AmaxOf{});
  }
}

}  // namespace

int64_t reduce_rows_scratch(int64_t rows, int64_t cols) {
  return std::max<int64_t>(partial_rows(rows), kWalkGroups) * cols * static_cast<int64_t>(sizeof(float));
}
int64_t reduce_all_scratch(int64_t count) { return blocks_of(count) * static_cast<int64_t>(sizeof(float)); }

void launch_reduce_rows(Reduction kind, DType dtype, const void* x, float* y, int64_t rows, int64_t cols,
                        float* scratch, uint32_t* counters, cudaStream_t stream) {
  const int64_t row_tiles = tiles_of(rows), col_tiles = tiles_of(cols);
  const auto grid = static_cast<unsigned>(row_tiles * col_tiles), across = static_cast<unsigned>(col_tiles);
  with_kind(kind, [&]<typename Kind>(Kind) {
    with_f32_or_bf16(dtype, [&]<typename T>(T) {
      if (walks_columns<T>(rows, cols)) {
        return launch_column_walk<Kind, T>({x, rows, cols, scratch, y, counters, {}}, stream);
      }
      const T* from = static_cast<const T*>(x);
      const auto kernel =
          cols % kPartCols == 0 ? reduce_rows_kernel<Kind, T, true> : reduce_rows_kernel<Kind, T, false>;
      launch_overlapped(kernel, {grid, kTileThreads}, stream, from, scratch, rows, cols, across);
      launch_finish_rows<Kind>(scratch, y, rows, cols, stream);
    });
  });
}

void launch_segment_mean(DType dtype, const void* x, int64_t rows, int64_t cols, const int32_t* starts,
                         int64_t segments, float* y, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((cols + kMeanThreads - 1) / kMeanThreads), static_cast<unsigned>(segments));
  with_f32_or_bf16(dtype, [&]<typename T>(T) {
    segment_mean_kernel<T><<<grid, kMeanThreads, 0, stream>>>(static_cast<const T*>(x), rows, cols, starts, y);
  });
}

void launch_reduce_all(Reduction kind, DType dtype, const void* x, float* y, int64_t count, float* scratch,
                       uint32_t* counters, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(blocks_of(count));
  with_kind(kind, [&]<typename Kind>(Kind) {
    with_f32_or_bf16(dtype, [&]<typename T>(T) {
      launch_overlapped(reduce_all_kernel<Kind, T>, {blocks, kPointwiseThreads}, stream, static_cast<const T*>(x),
                        scratch, counters, y, count);
    });
  });
}

}  // namespace octet::cuda
