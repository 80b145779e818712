// compute_scale, update_scales, maxima: a few values. dequantize: codes times scale_inv, rounded once. dequantize_nf4.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/scale_formula.cuh"
#include "kernels/cuda/precision/scales.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 128;

__device__ void store_scale(const ScaleFormula& formula, uint32_t amax, float* scale, float* scale_inv) {
  const float value = scale_of(formula, amax);
  if (scale != nullptr) *scale = value;
  if (scale_inv != nullptr) *scale_inv = 1.0f / value;
}

__global__ void compute_scale_kernel(ScaleFormula formula, const float* amax, float* scale, float* scale_inv) {
  griddep_wait();
  griddep_launch_dependents();
  store_scale(formula, __float_as_uint(*amax), scale, scale_inv);
}

// A block a tensor. The history moves up by one, from its end: old and new may be the same memory. An amax of 0, a NaN,
// an infinity and a step that is not finite leave it where it is.
__global__ void __launch_bounds__(kThreads) update_scales_kernel(const __grid_constant__ ScaleTable table) {
  __shared__ uint32_t scratch[32];
  griddep_wait();
  griddep_launch_dependents();
  const ScaleEntry& entry = table.entries[blockIdx.x];
  const float newest = *entry.amax;
  const uint32_t newest_bits = magnitude_bits(newest);
  const bool skipped = table.finite != nullptr && *table.finite == 0;
  const bool counts = newest_bits != 0 && newest_bits < 0x7f800000u && !skipped;
  const int shift = counts ? 1 : 0;
  uint32_t most = counts ? newest_bits : 0;
  for (int64_t end = table.length - shift; end > 0; end -= kThreads) {
    const int64_t i = end - 1 - threadIdx.x;
    const float value = i >= 0 ? entry.history[i] : 0.0f;
    if (!table.newest_only || (!counts && i == 0)) most = max(most, magnitude_bits(value));
    __syncthreads();
    if (i >= 0 && entry.new_history != nullptr) entry.new_history[i + shift] = value;
  }
  most = block_max(most, scratch);
  if (threadIdx.x != 0) return;
  if (counts && entry.new_history != nullptr) entry.new_history[0] = newest;
  store_scale({entry.max, table.margin, table.pow2}, most, entry.scale, entry.scale_inv);
}

__global__ void __launch_bounds__(kMaximumEntries) maxima_kernel(const __grid_constant__ MaximumTable table) {
  griddep_wait();
  griddep_launch_dependents();
  if (static_cast<int>(threadIdx.x) >= table.count) return;
  const MaximumEntry& entry = table.entries[threadIdx.x];
  if (entry.to != nullptr) *entry.to = max_or_nan(*entry.a, *entry.b);
}

// --- dequantize
constexpr int kRunThreads = 256, kRuns = 4;

// bf16 of code * scale with one rounding: the float32 product is first made odd where it is inexact.
__device__ __forceinline__ float product_for(bf16, float code, float scale) {
  const float product = code * scale, error = fmaf(code, scale, -product);
  uint32_t bits = __float_as_uint(product);
  const bool inexact = error != 0, above = ((__float_as_uint(error) ^ bits) >> 31) != 0;
  bits -= inexact && above ? 1 : 0;
  return __uint_as_float(bits | (inexact ? 1u : 0u));
}
__device__ __forceinline__ float product_for(float, float code, float scale) { return code * scale; }

// Runs of kVec neighbours of a row share a scale: blocks of scales begin at multiples of 128 columns.
template <int kVec, typename Code, typename T>
__global__ void __launch_bounds__(kRunThreads)
    dequantize_kernel(const __grid_constant__ DequantizeJob job, uint32_t row_runs, uint32_t all_runs,
                      T* __restrict__ out) {
  const uint32_t first = blockIdx.x * (kRuns * kRunThreads) + threadIdx.x;
  Vec<Code, kVec> codes[kRuns];
  float scale[kRuns];
#pragma unroll
  for (uint32_t n = 0; n < kRuns; ++n) {
    const uint32_t run = first + n * kRunThreads;
    if (run >= all_runs) continue;
    codes[n] = reinterpret_cast<const Vec<Code, kVec>*>(job.codes)[run];
    const uint32_t r = run / row_runs, c = (run - r * row_runs) * kVec;
    scale[n] = job.scale_inv[(r >> job.row_shift) * job.row_stride + (c >> job.col_shift) * job.col_stride];
  }
#pragma unroll
  for (uint32_t n = 0; n < kRuns; ++n) {
    const uint32_t run = first + n * kRunThreads;
    if (run >= all_runs) continue;
    float values[kVec];
    unroll<kVec>([&](int j) { values[j] = product_for(T{}, to_float(codes[n].at[j]), scale[n]); });
    store(out + static_cast<int64_t>(run) * kVec, values);
  }
}

template <typename Code, typename T>
void launch_runs(const DequantizeJob& job, T* out, cudaStream_t stream) {
  const bool vector = job.cols % kVecOf<T> == 0 && reinterpret_cast<uintptr_t>(job.codes) % kVecOf<T> == 0 &&
                      reinterpret_cast<uintptr_t>(out) % 16 == 0;
  const int64_t row_runs = job.cols / (vector ? kVecOf<T> : 1), all_runs = job.rows * row_runs;
  const auto blocks = static_cast<unsigned>((all_runs + kRuns * kRunThreads - 1) / (kRuns * kRunThreads));
  const auto of_row = static_cast<uint32_t>(row_runs), all = static_cast<uint32_t>(all_runs);
  if (vector) {
    dequantize_kernel<kVecOf<T>, Code><<<blocks, kRunThreads, 0, stream>>>(job, of_row, all, out);
  } else {
    dequantize_kernel<1, Code><<<blocks, kRunThreads, 0, stream>>>(job, of_row, all, out);
  }
}

// --- dequantize_nf4: 8 codes a load of 4 bytes and a store of 16 (bf16)
template <typename T>
__global__ void __launch_bounds__(kRunThreads)
    dequantize_nf4_kernel(const __grid_constant__ Nf4Job job, const __grid_constant__ Nf4Tables given, uint32_t runs,
                          T* __restrict__ out) {
  __shared__ float values[16], magnitudes[kRunThreads];  // neighbours' banks differ: 16 values have no conflicts
  static_assert(kRunThreads == 256);
  magnitudes[threadIdx.x] = given.magnitudes.data()[threadIdx.x];
  if (threadIdx.x < 16) values[threadIdx.x] = given.values.data()[threadIdx.x];
  __syncthreads();
  const uint32_t first = blockIdx.x * (kRuns * kRunThreads) + threadIdx.x;
  uint32_t codes[kRuns];
  float magnitude[kRuns];
#pragma unroll
  for (uint32_t n = 0; n < kRuns; ++n) {
    const uint32_t run = first + n * kRunThreads, block = run >> 3;
    if (run >= runs) continue;
    codes[n] = reinterpret_cast<const uint32_t*>(job.codes)[run];
    const float of_code = magnitudes[static_cast<int32_t>(job.magnitudes[block]) + 128];
    magnitude[n] =
        __fadd_rn(__fmul_rn(of_code, job.scales[block >> job.group_shift]), job.offsets[block / job.row_blocks]);
  }
#pragma unroll
  for (uint32_t n = 0; n < kRuns; ++n) {
    const uint32_t run = first + n * kRunThreads;
    if (run >= runs) continue;
    const uint32_t indices = codes[n] ^ 0x88888888U;  // codes are the index less 8
    float y[8];
    unroll<8>([&](int j) { y[j] = __fmul_rn(values[indices >> (4 * j) & 15], magnitude[n]); });
    store(out + static_cast<int64_t>(run) * 8, y);
  }
}

}  // namespace

void launch_compute_scale(const ScaleFormula& formula, const float* amax, float* scale, float* scale_inv,
                          cudaStream_t stream) {
  launch_overlapped(compute_scale_kernel, {1, 1}, stream, formula, amax, scale, scale_inv);
}

void launch_update_scales(const ScaleTable& table, cudaStream_t stream) {
  launch_overlapped(update_scales_kernel, {static_cast<unsigned>(table.count), kThreads}, stream, table);
}

void launch_maxima(const MaximumTable& table, cudaStream_t stream) {
  launch_overlapped(maxima_kernel, {1, kMaximumEntries}, stream, table);
}

void launch_dequantize(const DequantizeJob& job, DType format, void* out, DType to, cudaStream_t stream) {
  with_fp8_type(format, [&]<typename Code>(Code) {
    if (to == DType::kF32) {
      launch_runs<Code>(job, static_cast<float*>(out), stream);
    } else {
      launch_runs<Code>(job, static_cast<bf16*>(out), stream);
    }
  });
}

void launch_dequantize_nf4(const Nf4Job& job, const Nf4Tables& tables, void* out, DType to, cudaStream_t stream) {
  const auto runs = static_cast<uint32_t>(job.count / 8);
  const auto blocks = static_cast<unsigned>((runs + kRuns * kRunThreads - 1) / (kRuns * kRunThreads));
  if (to == DType::kF32) {
    dequantize_nf4_kernel<<<blocks, kRunThreads, 0, stream>>>(job, tables, runs, static_cast<float*>(out));
  } else {
    dequantize_nf4_kernel<<<blocks, kRunThreads, 0, stream>>>(job, tables, runs, static_cast<bf16*>(out));
  }
}

}  // namespace octet::cuda
