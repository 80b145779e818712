// tensor_stats: amax in one pass, then tiles of 128 x 128 held in registers while they are encoded and decoded
// under each scaling. Sums are float64; each tile leaves its own, one block joins them in order: the same bits always.
#include "kernels/cuda/precision/scales.h"

#include "ir/tensor_stats.h"
#include "kernels/cuda/common/quantize_tile.cuh"

namespace octet::cuda {
namespace {

constexpr int kScalings = 3;  // one scale, blocks, blocks of the transpose
constexpr int kAmaxBlocks = 528, kJoinThreads = 256;
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr int kGroupPitch = kPartCols + 1;  // columns of a thread group in shared memory: no bank conflicts
constexpr int kTileWarps = kTileThreads / 32;

enum Count : int {
  kRows,  // runs of 128 that are not all zeros
  kCols,
  kNotFinite,
  kNonZero,
  kBlocks,  // not all zeros
  kBlockBinades,
  kUnderflowed,
  kSaturated = kUnderflowed + kScalings,
  kCounts = kSaturated + kScalings
};

struct TileStats {
  double row_noise[kScalings], col_noise[kScalings];
  int32_t counts[kCounts];
  uint32_t low;  // bits of the smallest non-zero magnitude
};

struct StatsScratch {
  double columns[kTileWarps][8 * kGroupPitch];  // sums of each warp's 16 rows; before them the columns' maxima
  double col_signal[kTile];
  float col_scale[kTile];
  double warps[kTileWarps];
  int32_t counts[kCounts];
  uint32_t low, amax;
};

// floor(log2 |x|) of a non-zero finite float.
__device__ int exponent_of(uint32_t bits) {
  return bits >= 0x00800000u ? static_cast<int>(bits >> 23) - 127 : 31 - __clz(static_cast<int>(bits)) - 149;
}
__device__ int binades(uint32_t low, uint32_t high) { return exponent_of(high) - exponent_of(low) + 1; }
__device__ uint32_t finite_magnitude(float x) {
  const uint32_t bits = magnitude_bits(x);
  return bits < kInfinity ? bits : 0u;
}

template <typename T>
__global__ void finite_amax_kernel(const T* __restrict__ x, int64_t count, bool vector, float* amax) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t whole = vector ? count / kVecOf<T> : 0;
  uint32_t most = 0;
  for (int64_t i = thread; i < whole; i += stride) {
    float few[kVecOf<T>];
    load(x + i * kVecOf<T>, few);
#pragma unroll
    for (float value : few) most = max(most, finite_magnitude(value));
  }
  for (int64_t i = whole * kVecOf<T> + thread; i < count; i += stride)
    most = max(most, finite_magnitude(to_float(x[i])));
  block_amax(most, amax);
}

__device__ __forceinline__ double sum_over(double x, int first, int last) {  // lanes that differ in these bits
#pragma unroll
  for (int lanes = first; lanes <= last; lanes *= 2) x += __shfl_xor_sync(kWholeWarp, x, lanes);
  return x;
}

__device__ double block_sum(double x, double* scratch) {
  x = sum_over(x, 1, 16);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  unroll<kTileWarps>([&](int warp) { x += scratch[warp]; });
  return x;
}

__device__ void add_count(StatsScratch& scratch, int which, int value) {
  value = __reduce_add_sync(kWholeWarp, value);
  if (threadIdx.x % 32 == 0 && value != 0) atomicAdd(&scratch.counts[which], value);
}

// A tile's sums over its rows and its columns of term(i, j, values): the squares of 4 neighbours at once.
struct LineSums {
  double row[kPartRows];  // every thread of the row
  double col;             // thread c < 128: column c
};
template <typename Terms>
__device__ __forceinline__ LineSums line_sums(StatsScratch& scratch, Terms&& terms) {
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  LineSums sums = {};
  unroll<kPartCols / 4>([&](int q) {
    double col[4] = {};
    unroll<kPartRows>([&](int i) {
      double squares[4];
      terms(i, q, squares);
      unroll<4>([&](int j) { sums.row[i] += squares[j], col[j] += squares[j]; });
    });
    unroll<4>([&](int j) {
      const double total = sum_over(col[j], 8, 16);
      if (lane < 8) scratch.columns[warp][lane * kGroupPitch + 4 * q + j] = total;
    });
  });
#pragma unroll
  for (double& row : sums.row) row = sum_over(row, 1, 4);
  __syncthreads();
  if (const int c = static_cast<int>(threadIdx.x); c < kTile) {
    unroll<kTileWarps>([&](int w) { sums.col += scratch.columns[w][c / kPartCols * kGroupPitch + c % kPartCols]; });
  }
  __syncthreads();
  return sums;
}

// Noise and counts under one scaling; scale_of(i, j) of a thread's elements.
template <typename Code, typename T, typename ScaleOf>
__device__ __forceinline__ void measure(const TilePart<T>& x, const LineSums& signal, int scaling, ScaleOf&& scale_of,
                                        StatsScratch& scratch, TileStats& stats) {
  constexpr uint32_t kLargest = std::is_same_v<Code, e4m3> ? 0x7e : 0x7b;
  int underflow = 0, saturated = 0;
  const LineSums noise = line_sums(scratch, [&](int i, int q, double(&squares)[4]) {
    float scales[4];
    unroll<4>([&](int j) { scales[j] = scale_of(i, 4 * q + j); });
    const uint32_t codes =
        encode4<Code>(x.value(i, 4 * q), x.value(i, 4 * q + 1), x.value(i, 4 * q + 2), x.value(i, 4 * q + 3), scales);
    unroll<4>([&](int j) {
      const auto code = static_cast<uint8_t>(codes >> (8 * j));
      const float value = x.value(i, 4 * q + j);
      underflow += magnitude_bits(value) != 0 && (code & 0x7fu) == 0;
      saturated += (code & 0x7fu) == kLargest;
      const double rounded = static_cast<double>(to_float(Code{code})) * static_cast<double>(1.0f / scales[j]);
      const double error = static_cast<double>(value) - rounded;
      squares[j] = error * error;
    });
  });
  double row_noise = 0, col_noise = 0;
  unroll<kPartRows>([&](int i) {
    if (threadIdx.x % 8 == 0 && signal.row[i] > 0) row_noise += noise.row[i] / signal.row[i];
  });
  if (threadIdx.x < kTile && signal.col > 0) col_noise = noise.col / signal.col;
  stats.row_noise[scaling] = block_sum(row_noise, scratch.warps);
  stats.col_noise[scaling] = block_sum(col_noise, scratch.warps);
  add_count(scratch, kUnderflowed + scaling, underflow);
  add_count(scratch, kSaturated + scaling, saturated);
}

template <typename Code, typename T>
__global__ void __launch_bounds__(kTileThreads)
    tensor_stats_kernel(const __grid_constant__ StatsJob job, const uint32_t* amax, bool vector, TileStats* results) {
  __shared__ StatsScratch scratch;
  const int lane = static_cast<int>(threadIdx.x & 31), warp = static_cast<int>(threadIdx.x >> 5);
  const int64_t col_tiles = (job.cols + kTile - 1) / kTile;
  TilePart<T> x;
  const int64_t r0 = blockIdx.x / col_tiles * kTile, c0 = blockIdx.x % col_tiles * kTile;
  if (vector) {
    x.template load<true>(static_cast<const T*>(job.x), job.rows, job.cols, r0, c0);
  } else {
    x.template load<false>(static_cast<const T*>(job.x), job.rows, job.cols, r0, c0);
  }
  if (threadIdx.x < kCounts) scratch.counts[threadIdx.x] = 0;
  if (threadIdx.x == 0) scratch.low = kInfinity, scratch.amax = 0;
  __syncthreads();

  int not_finite = 0, non_zero = 0, blocks = 0, block_binades = 0;
  uint32_t part_low = kInfinity, part_amax = 0, col_amax[kPartCols] = {};
  float row_scale[kPartRows];
  unroll<kPartRows>([&](int i) {
    uint32_t low = kInfinity, high = 0;
#pragma unroll
    for (int j = 0; j < kPartCols; j += 2) {
      float pair[2] = {x.value(i, j), x.value(i, j + 1)};
      unroll<2>([&](int k) {
        if (magnitude_bits(pair[k]) >= kInfinity) pair[k] = 0.0f, ++not_finite;
        const uint32_t bits = magnitude_bits(pair[k]);
        non_zero += bits != 0;
        high = max(high, bits);
        low = min(low, bits == 0 ? kInfinity : bits);
        col_amax[j + k] = max(col_amax[j + k], bits);
      });
      x.set(i, j, pair[0], pair[1]);
    }
#pragma unroll
    for (int lanes = 1; lanes <= 4; lanes *= 2) {
      high = max(high, __shfl_xor_sync(kWholeWarp, high, lanes));
      low = min(low, __shfl_xor_sync(kWholeWarp, low, lanes));
    }
    row_scale[i] = scale_of(job.block, high);
    if (!job.tiles && lane % 8 == 0 && high > 0) ++blocks, block_binades += binades(low, high);
    part_amax = max(part_amax, high), part_low = min(part_low, low);
  });
  part_amax = warp_max(part_amax), part_low = __reduce_min_sync(kWholeWarp, part_low);
  if (lane == 0) atomicMax(&scratch.amax, part_amax), atomicMin(&scratch.low, part_low);
  auto* maxima = reinterpret_cast<uint32_t(*)[8 * kGroupPitch]>(scratch.columns);
  unroll<kPartCols>([&](int j) {
    col_amax[j] = max(col_amax[j], __shfl_xor_sync(kWholeWarp, col_amax[j], 8));
    col_amax[j] = max(col_amax[j], __shfl_xor_sync(kWholeWarp, col_amax[j], 16));
    if (lane < 8) maxima[warp][lane * kGroupPitch + j] = col_amax[j];
  });
  __syncthreads();
  if (const int c = static_cast<int>(threadIdx.x); c < kTile) {
    uint32_t most = 0;
    for (int w = 0; w < kTileWarps; ++w) most = max(most, maxima[w][c / kPartCols * kGroupPitch + c % kPartCols]);
    scratch.col_scale[c] = scale_of(job.block, most);
  }
  const uint32_t tile_amax = scratch.amax, tile_low = scratch.low;
  if (job.tiles && threadIdx.x == 0 && tile_amax > 0) blocks = 1, block_binades = binades(tile_low, tile_amax);
  __syncthreads();

  TileStats stats = {};
  const LineSums signal = line_sums(scratch, [&](int i, int q, double(&squares)[4]) {
    unroll<4>([&](int j) {
      const double value = x.value(i, 4 * q + j);
      squares[j] = value * value;
    });
  });
  int filled_rows = 0;
  unroll<kPartRows>([&](int i) { filled_rows += lane % 8 == 0 && signal.row[i] > 0; });
  add_count(scratch, kRows, filled_rows);
  add_count(scratch, kCols, threadIdx.x < kTile && signal.col > 0);
  add_count(scratch, kNotFinite, not_finite);
  add_count(scratch, kNonZero, non_zero);
  add_count(scratch, kBlocks, blocks);
  add_count(scratch, kBlockBinades, block_binades);

  const float tensor_scale = scale_of(job.tensor, *amax), tile_scale = scale_of(job.block, tile_amax);
  measure<Code>(
      x, signal, 0, [&](int, int) { return tensor_scale; }, scratch, stats);
  measure<e4m3>(
      x, signal, 1, [&](int i, int) { return job.tiles ? tile_scale : row_scale[i]; }, scratch, stats);
  if (!job.tiles)
    measure<e4m3>(
        x, signal, 2, [&](int, int j) { return scratch.col_scale[x.col() + j]; }, scratch, stats);
  __syncthreads();
  if (threadIdx.x != 0) return;
  unroll<kCounts>([&](int i) { stats.counts[i] = scratch.counts[i]; });
  stats.low = tile_low;
  results[blockIdx.x] = stats;
}

__device__ float ratio(double part, double whole) { return whole > 0 ? static_cast<float>(part / whole) : 0.0f; }

__global__ void __launch_bounds__(kJoinThreads)
    join_stats_kernel(const TileStats* tiles, int64_t count, const uint32_t* amax, double elements, bool square,
                      float* results) {
  __shared__ double scratch[kTileWarps];
  __shared__ uint32_t smallest;
  if (threadIdx.x == 0) smallest = kInfinity;
  double sums[2 * kScalings + kCounts] = {};
  uint32_t low = kInfinity;
  for (int64_t i = threadIdx.x; i < count; i += kJoinThreads) {
    const TileStats& tile = tiles[i];
    unroll<kScalings>([&](int s) { sums[s] += tile.row_noise[s], sums[kScalings + s] += tile.col_noise[s]; });
    unroll<kCounts>([&](int n) { sums[2 * kScalings + n] += tile.counts[n]; });  // whole numbers: exact
    low = min(low, tile.low);
  }
#pragma unroll
  for (double& sum : sums) sum = block_sum(sum, scratch);
  atomicMin(&smallest, low);
  __syncthreads();
  if (threadIdx.x != 0) return;
  const double* counts = sums + 2 * kScalings;
  results[kStatAmax] = __uint_as_float(*amax);
  results[kStatNotFinite] = ratio(counts[kNotFinite], elements);
  results[kStatBinades] = *amax > 0 ? static_cast<float>(binades(smallest, *amax)) : 0.0f;
  results[kStatBlockBinades] = ratio(counts[kBlockBinades], counts[kBlocks]);
  unroll<kScalings>([&](int i) {
    float* to = results + kStatTensor + 3 * i;
    const bool same = i == 2 && square;  // the transpose of a tile is a tile
    to[kUnderflow] = ratio(same ? counts[kUnderflowed + 1] : counts[kUnderflowed + i], counts[kNonZero]);
    to[kSaturation] = ratio(same ? counts[kSaturated + 1] : counts[kSaturated + i], counts[kNonZero]);
    to[kNoise] = fmaxf(ratio(same ? sums[1] : sums[i], counts[kRows]),
                       ratio(same ? sums[kScalings + 1] : sums[kScalings + i], counts[kCols]));
  });
}

int64_t tiles_of(int64_t rows, int64_t cols) { return ((rows + kTile - 1) / kTile) * ((cols + kTile - 1) / kTile); }

template <typename Code, typename T>
void launch(const StatsJob& job, void* workspace, cudaStream_t stream) {
  const int64_t count = tiles_of(job.rows, job.cols);
  auto* amax = static_cast<uint32_t*>(workspace);  // alone in the first 256 bytes
  auto* tiles = reinterpret_cast<TileStats*>(static_cast<char*>(workspace) + 256);
  const bool aligned = reinterpret_cast<uintptr_t>(job.x) % 16 == 0;
  cudaMemsetAsync(amax, 0, sizeof(uint32_t), stream);
  finite_amax_kernel<<<kAmaxBlocks, 256, 0, stream>>>(static_cast<const T*>(job.x), job.rows * job.cols, aligned,
                                                      reinterpret_cast<float*>(amax));
  tensor_stats_kernel<Code, T>
      <<<static_cast<unsigned>(count), kTileThreads, 0, stream>>>(job, amax, aligned && job.cols % 16 == 0, tiles);
  join_stats_kernel<<<1, kJoinThreads, 0, stream>>>(
      tiles, count, amax, static_cast<double>(job.rows) * static_cast<double>(job.cols), job.tiles, job.stats);
}

}  // namespace

int64_t tensor_stats_workspace(int64_t rows, int64_t cols) {
  return 256 + tiles_of(rows, cols) * static_cast<int64_t>(sizeof(TileStats));
}

void launch_tensor_stats(const StatsJob& job, DType type, DType format, void* workspace, cudaStream_t stream) {
  with_fp8_type(format, [&]<typename Code>(Code) {
    if (type == DType::kF32) {
      launch<Code, float>(job, workspace, stream);
    } else {
      launch<Code, bf16>(job, workspace, stream);
    }
  });
}

}  // namespace octet::cuda
