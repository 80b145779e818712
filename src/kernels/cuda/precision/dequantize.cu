// dequantize: codes times scale_inv, 16 codes a thread.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/precision/scales.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kRun = 16;

// bf16 of code * scale with one rounding: the float32 product is first made odd where it is inexact.
__device__ __forceinline__ float product_for(bf16, float code, float scale) {
  const float product = code * scale, error = fmaf(code, scale, -product);
  uint32_t bits = __float_as_uint(product);
  const bool inexact = error != 0, above = ((__float_as_uint(error) ^ bits) >> 31) != 0;
  bits -= inexact && above ? 1 : 0;
  return __uint_as_float(bits | (inexact ? 1u : 0u));
}
__device__ __forceinline__ float product_for(float, float code, float scale) { return code * scale; }

// Runs of 16 within a row share a scale: blocks begin at multiples of 128 columns. runs = ceil(cols / 16).
template <typename Code, typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const __grid_constant__ DequantizeJob job, int64_t runs, bool vector, T* __restrict__ out) {
  const int64_t run = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (run >= job.rows * runs) return;
  const int64_t r = run / runs, c = run % runs * kRun, at = r * job.cols + c;
  const float scale = job.scale_inv[r / job.row_divisor * job.scale_cols + c / job.col_divisor];
  if (vector) {
    const Vec<Code, kRun> codes = *reinterpret_cast<const Vec<Code, kRun>*>(job.codes + at);
#pragma unroll
    for (int i = 0; i < kRun; i += kVecOf<T>) {
      float values[kVecOf<T>];
#pragma unroll
      for (int j = 0; j < kVecOf<T>; ++j) values[j] = product_for(T{}, to_float(codes.at[i + j]), scale);
      store(out + at + i, values);
    }
  } else {
    for (int i = 0; i < kRun && c + i < job.cols; ++i)
      out[at + i] = from_float<T>(product_for(T{}, to_float(Code{job.codes[at + i]}), scale));
  }
}

template <typename Code, typename T>
void launch(const DequantizeJob& job, T* out, cudaStream_t stream) {
  const int64_t runs = (job.cols + kRun - 1) / kRun, blocks = (job.rows * runs + kThreads - 1) / kThreads;
  const bool vector = job.cols % kRun == 0 && reinterpret_cast<uintptr_t>(job.codes) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(out) % 16 == 0;
  dequantize_kernel<Code><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(job, runs, vector, out);
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
