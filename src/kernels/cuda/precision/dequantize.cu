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

// A block takes kRuns runs of 256 vectors of one row; the elements of a vector share a scale: blocks of scales begin at
// multiples of 128 columns. segments: of a row.
template <int kVec, typename Code, typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const __grid_constant__ DequantizeJob job, int64_t segments, T* __restrict__ out) {
  const int64_t r = blockIdx.x / segments, first = blockIdx.x % segments * kRuns * kThreads * kVec;
  const float* scales = job.scale_inv + r / job.row_divisor * job.scale_cols;
  const uint8_t* codes = job.codes + r * job.cols;
  out += r * job.cols;
  float values[kRuns][kVec];
  int64_t c = first + threadIdx.x * kVec;
#pragma unroll
  for (int run = 0; run < kRuns; ++run, c += kThreads * kVec) {
    if (c >= job.cols) continue;
    const Vec<Code, kVec> few = *reinterpret_cast<const Vec<Code, kVec>*>(codes + c);
    const float scale = scales[c / job.col_divisor];
#pragma unroll
    for (int j = 0; j < kVec; ++j) values[run][j] = product_for(T{}, to_float(few.at[j]), scale);
  }
  c = first + threadIdx.x * kVec;
#pragma unroll
  for (int run = 0; run < kRuns; ++run, c += kThreads * kVec)
    if (c < job.cols) store(out + c, values[run]);
}

template <typename Code, typename T>
void launch(DequantizeJob job, T* out, cudaStream_t stream) {
  if (job.row_divisor > job.rows && job.col_divisor > job.cols) {  // one scale: one long row
    job.cols *= job.rows, job.rows = 1;
    job.col_divisor = job.cols + 1;
  }
  const bool vector = job.cols % kVecOf<T> == 0 && reinterpret_cast<uintptr_t>(job.codes) % kVecOf<T> == 0 &&
                      reinterpret_cast<uintptr_t>(out) % 16 == 0;
  const int64_t of_block = int64_t{kRuns} * kThreads * (vector ? kVecOf<T> : 1);
  const int64_t segments = (job.cols + of_block - 1) / of_block;
  const auto blocks = static_cast<unsigned>(job.rows * segments);
  if (vector) {
    dequantize_kernel<kVecOf<T>, Code><<<blocks, kThreads, 0, stream>>>(job, segments, out);
  } else {
    dequantize_kernel<1, Code><<<blocks, kThreads, 0, stream>>>(job, segments, out);
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
