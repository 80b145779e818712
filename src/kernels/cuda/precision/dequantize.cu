// dequantize: codes times scale_inv, rounded once.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/precision/scales.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kRuns = 4;

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
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const __grid_constant__ DequantizeJob job, uint32_t row_runs, uint32_t all_runs,
                      T* __restrict__ out) {
  const uint32_t first = blockIdx.x * (kRuns * kThreads) + threadIdx.x;
  Vec<Code, kVec> codes[kRuns];
  float scale[kRuns];
#pragma unroll
  for (uint32_t n = 0; n < kRuns; ++n) {
    const uint32_t run = first + n * kThreads;
    if (run >= all_runs) continue;
    codes[n] = reinterpret_cast<const Vec<Code, kVec>*>(job.codes)[run];
    const uint32_t r = run / row_runs, c = (run - r * row_runs) * kVec;
    scale[n] = job.scale_inv[(r >> job.row_shift) * job.row_stride + (c >> job.col_shift) * job.col_stride];
  }
#pragma unroll
  for (uint32_t n = 0; n < kRuns; ++n) {
    const uint32_t run = first + n * kThreads;
    if (run >= all_runs) continue;
    float values[kVec];
    unroll<kVec>([&](int j) { values[j] = product_for(T{}, to_float(codes[n].at[j]), scale[n]); });
    store(out + static_cast<int64_t>(run) * kVec, values);
  }
}

template <typename Code, typename T>
void launch(const DequantizeJob& job, T* out, cudaStream_t stream) {
  const bool vector = job.cols % kVecOf<T> == 0 && reinterpret_cast<uintptr_t>(job.codes) % kVecOf<T> == 0 &&
                      reinterpret_cast<uintptr_t>(out) % 16 == 0;
  const int64_t row_runs = job.cols / (vector ? kVecOf<T> : 1), all_runs = job.rows * row_runs;
  const auto blocks = static_cast<unsigned>((all_runs + kRuns * kThreads - 1) / (kRuns * kThreads));
  const auto of_row = static_cast<uint32_t>(row_runs), all = static_cast<uint32_t>(all_runs);
  if (vector) {
    dequantize_kernel<kVecOf<T>, Code><<<blocks, kThreads, 0, stream>>>(job, of_row, all, out);
  } else {
    dequantize_kernel<1, Code><<<blocks, kThreads, 0, stream>>>(job, of_row, all, out);
  }
}

}  // namespace

void launch_dequantize(const DequantizeJob& job, DType format, void* out, DType to, cudaStream_t stream) {
  with_fp8_type(format, [&]<typename Code>(Code) {
    if (to == DType::kF32) {
      launch<Code>(job, static_cast<float*>(out), stream);
    } else {
      launch<Code>(job, static_cast<bf16*>(out), stream);
    }
  });
}

}  // namespace octet::cuda
