// Kernels of quantize: tiles (common/quantize_tile.cuh), a stream where nothing needs tiles, rows
// (common/quantize_per_row.cuh).
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_per_row.cuh"

namespace octet::cuda {
namespace {

template <ScaleLayout kLayout, typename Code, bool kVector, typename T>
__global__ void __launch_bounds__(kTileThreads, kVector ? 8 / static_cast<int>(sizeof(T)) : 1)
    quantize_tiles_kernel(const T* x, const __grid_constant__ QuantizeJob job, unsigned across) {  // x [rows, cols]
  __shared__ TileScratch scratch;
  griddep_wait();
  griddep_launch_dependents();
  const int64_t r0 = int64_t{blockIdx.x / across} * kTile, c0 = int64_t{blockIdx.x % across} * kTile;
  TilePart<T> part;
  part.template load<kVector>(x, job.rows, job.cols, r0, c0);
  quantize_tile<kLayout, Code, kVector>(part, r0, c0, job, scratch);
}

template <ScaleLayout kLayout, typename Code, typename T>
void launch_quantize_tiles(const QuantizeJob& job, const QuantizePlan& plan, const T* x, cudaStream_t stream) {
  static_assert(kTile == kQuantizeTile);
  const auto kernel =
      job.vector ? quantize_tiles_kernel<kLayout, Code, true, T> : quantize_tiles_kernel<kLayout, Code, false, T>;
  launch_overlapped(kernel, {static_cast<unsigned>(plan.grid), kTileThreads}, stream, x, job,
                    static_cast<unsigned>(plan.across));
}

// 16 neighbours as float32 and their packed maximum; 0 beyond `count`.
template <typename T>
__device__ __forceinline__ void load16(const T* x, int64_t count, bool vector, float (&to)[16]) {
  if (vector && count >= 16) {
#pragma unroll
    for (int i = 0; i < 16; i += kVecOf<T>) {
      float few[kVecOf<T>];
      load(x + i, few);
#pragma unroll
      for (int j = 0; j < kVecOf<T>; ++j) to[i + j] = few[j];
    }
  } else {
    unroll<16>([&](int i) { to[i] = i < count ? to_float(x[i]) : 0.0f; });
  }
}
template <typename Code>
__device__ __forceinline__ void store16(uint8_t* codes, int64_t count, bool vector, const float (&x)[16], float scale) {
  uint32_t words[4];
  unroll<4>([&](int q) { words[q] = encode4<Code>(x[4 * q], x[4 * q + 1], x[4 * q + 2], x[4 * q + 3], scale); });
  if (vector && count >= 16) {
    *reinterpret_cast<uint4*>(codes) = {words[0], words[1], words[2], words[3]};
  } else {
    unroll<16>([&](int i) {
      if (i < count) codes[i] = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
    });
  }
}
__device__ __forceinline__ uint32_t amax16(const float (&x)[16]) {
  uint32_t most = 0;
  unroll<16>([&](int i) { most = max(most, magnitude_bits(x[i])); });
  return most;
}

// Per tensor without a transpose: x [count], 32 elements a thread.
template <typename Code, typename T>
__global__ void __launch_bounds__(kStreamThreads)
    quantize_stream_kernel(const T* x, const __grid_constant__ QuantizeJob job) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t count = job.rows * job.cols;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kStreamRuns * kStreamThreads + threadIdx.x) * 16;
  float values[kStreamRuns][16];
  unroll<kStreamRuns>([&](int run) {
    const int64_t i = first + run * kStreamThreads * 16;
    load16(x + i, count - i, job.vector, values[run]);
  });
  const float scale = tensor_scale(job);
  uint32_t most = 0;
  unroll<kStreamRuns>([&](int run) {
    const int64_t i = first + run * kStreamThreads * 16;
    if (job.amax != nullptr) most = max(most, amax16(values[run]));
    if (job.codes != nullptr) store16<Code>(job.codes + i, count - i, job.vector, values[run], scale);
  });
  if (job.amax != nullptr) block_amax(most, job.amax);
  if (blockIdx.x == 0 && threadIdx.x == 0) store_tensor_scale(job, scale);
}

// Bits of the columns' amaxes, [cols], cleared before: 256 columns and 128 rows a block.
template <typename T>
__global__ void column_amax_kernel(const T* __restrict__ x, int64_t rows, int64_t cols, uint32_t* col_amax) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= cols) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kTile, end = min(begin + kTile, rows);
  uint32_t most = 0;
  for (int64_t r = begin; r < end; ++r) most = max(most, magnitude_bits(to_float(x[r * cols + c])));
  atomicMax(col_amax + c, most);
}

template <typename Code, typename T>
void launch_quantize_by_row(QuantizeJob job, const QuantizePlan& plan, const T* x, uint32_t* col_amax,
                            cudaStream_t stream) {
  if (job.codes != nullptr || job.scale_inv != nullptr || job.amax != nullptr) {
    launch_quantize_per_row<Code>(PlainRows<T>{x, job.cols}, job, plan.per_row, stream);
  }
  if (job.codes_t == nullptr && job.scale_inv_t == nullptr) return;
  cudaMemsetAsync(col_amax, 0, static_cast<size_t>(job.cols) * sizeof(uint32_t), stream);
  const dim3 grid(static_cast<unsigned>((job.cols + 255) / 256), static_cast<unsigned>((job.rows + kTile - 1) / kTile));
  column_amax_kernel<<<grid, 256, 0, stream>>>(x, job.rows, job.cols, col_amax);
  job.col_amax = col_amax;
  job.codes = nullptr, job.scale_inv = nullptr, job.amax = nullptr;
  launch_quantize_tiles<ScaleLayout::kRow, Code>(job, plan, x, stream);
}

template <typename Code, typename T>
void launch_quantize_as(const QuantizeJob& job, ScaleLayout grouping, const T* x, uint32_t* col_amax,
                        cudaStream_t stream) {
  if (job.amax != nullptr) cudaMemsetAsync(job.amax, 0, sizeof(float), stream);
  const QuantizePlan plan = choose_quantize(describe_quantize(job, grouping, x));
  if (plan.kernel == QuantizeKernel::kStream) {
    launch_overlapped(quantize_stream_kernel<Code, T>, {static_cast<unsigned>(plan.grid), kStreamThreads}, stream, x,
                      job);
    return;
  }
  switch (grouping) {
    case ScaleLayout::kTensor: return launch_quantize_tiles<ScaleLayout::kTensor, Code>(job, plan, x, stream);
    case ScaleLayout::kRow: return launch_quantize_by_row<Code>(job, plan, x, col_amax, stream);
    case ScaleLayout::kRow128: return launch_quantize_tiles<ScaleLayout::kRow128, Code>(job, plan, x, stream);
    case ScaleLayout::kTile128: return launch_quantize_tiles<ScaleLayout::kTile128, Code>(job, plan, x, stream);
  }
}

// --- codes of one byte from rows to columns: where both directions share their scale, the transposed codes are those
// of the rows, and reading these again costs half of what reading what they were made from would
template <bool kVector>
__global__ void __launch_bounds__(kTileThreads)
    transpose_codes_kernel(const uint8_t* codes, uint8_t* codes_t, int64_t rows, int64_t cols, unsigned across) {
  __shared__ TileScratch scratch;
  griddep_wait();
  griddep_launch_dependents();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t r0 = int64_t{blockIdx.x / across} * kTile, c0 = int64_t{blockIdx.x % across} * kTile;
  const int64_t r = r0 + (thread >> 3) * kPartRows, c = c0 + (thread & 7) * kPartCols;
  uint32_t held[kPartRows][kPartCols / 4] = {};
  const uint8_t* from = codes + r * cols + c;
#pragma unroll
  for (int i = 0; i < kPartRows; ++i, from += cols) {
    if (r + i >= rows || c >= cols) continue;
    if constexpr (kVector) {
      const uint4 four = *reinterpret_cast<const uint4*>(from);
      held[i][0] = four.x, held[i][1] = four.y, held[i][2] = four.z, held[i][3] = four.w;
    } else {
      unroll<kPartCols>([&](int j) {
        if (c + j < cols) held[i][j / 4] |= uint32_t{from[j]} << (j % 4 * 8);
      });
    }
  }
  uint32_t* mine = turned_codes_of_thread(scratch);
  unroll<kPartCols / 4>([&](int q) {
    uint32_t columns[4];
    turn_codes({held[0][q], held[1][q], held[2][q], held[3][q]}, columns);
    unroll<4>([&](int j) { mine[(4 * q + j) * (kTile / 4)] = columns[j]; });
  });
  store_turned_codes<kVector>(scratch, codes_t, r0, c0, rows, cols);
}

}  // namespace

void launch_quantize(QuantizeJob job, ScaleLayout grouping, DType format, const void* x, DType type, uint32_t* col_amax,
                     cudaStream_t stream) {
  job.set_vector(x);
  with_f32_or_bf16(type, [&]<typename T>(T) {
    with_code_type(format, [&]<typename Code>(Code) {
      launch_quantize_as<Code>(job, grouping, static_cast<const T*>(x), col_amax, stream);
    });
  });
}

void launch_transpose_codes(const void* codes, void* codes_t, int64_t rows, int64_t cols, cudaStream_t stream) {
  const int64_t down = (rows + kTile - 1) / kTile, across = (cols + kTile - 1) / kTile;
  const auto bits = reinterpret_cast<uintptr_t>(codes) | reinterpret_cast<uintptr_t>(codes_t);
  const bool vector = rows % 16 == 0 && cols % 16 == 0 && bits % 16 == 0;
  const auto kernel = vector ? transpose_codes_kernel<true> : transpose_codes_kernel<false>;
  launch_overlapped(kernel, {static_cast<unsigned>(down * across), kTileThreads}, stream,
                    static_cast<const uint8_t*>(codes), static_cast<uint8_t*>(codes_t), rows, cols,
                    static_cast<unsigned>(across));
}

}  // namespace octet::cuda
