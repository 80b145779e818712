#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/matmul/launchers.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_of(int64_t elements) { return static_cast<unsigned>((elements + kThreads - 1) / kThreads); }

__global__ void pad_scales_kernel(const float* __restrict__ from, float* __restrict__ to, int64_t rows, int64_t cols,
                                  int64_t padded) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < rows * cols) to[i / cols * padded + i % cols] = from[i];
}

__global__ void repeat_scale_kernel(const float* __restrict__ from, float* __restrict__ to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = *from;
}

template <typename From, typename To>
__global__ void spread_bias_kernel(const From* __restrict__ from, To* __restrict__ to, int64_t elements, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < elements) to[i] = from_float<To>(to_float(from[i % cols]));
}

template <typename T, typename Bias>
__global__ void scale_result_kernel(const __grid_constant__ ScaledResult r) {
  constexpr int kCount = 4;
  griddep_wait();
  griddep_launch_dependents();
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (at >= r.m * r.n) return;
  const int64_t row = at / r.n, col = at % r.n;
  float value[kCount], other[kCount];
  load(r.sums + at, value);
  const float scale = r.row_scale != nullptr ? r.row_scale[row] : 1.0f;
  unroll<kCount>([&](int i) { value[i] *= scale; });
  if (r.col_scale != nullptr) {
    unroll<kCount>([&](int i) { value[i] *= r.col_scale[col + i]; });
  }
  if (r.c != nullptr) {
    load(static_cast<const T*>(r.c) + at, other);
    unroll<kCount>([&](int i) { value[i] += other[i]; });
  }
  if (r.bias != nullptr) {
    load(static_cast<const Bias*>(r.bias) + col, other);
    unroll<kCount>([&](int i) { value[i] += other[i]; });
  }
  unroll<kGemvParts>([&](int i) {
    const GemvPart& part = r.parts[i];
    if (i >= r.part_count || col < part.begin || col >= part.end || part.out == nullptr) return;
    store(static_cast<T*>(part.out) + row * (part.end - part.begin) + col - part.begin, value);
  });
}

}  // namespace

void launch_pad_scales(const float* from, float* to, int64_t rows, int64_t cols, int64_t padded, cudaStream_t stream) {
  pad_scales_kernel<<<blocks_of(rows * cols), kThreads, 0, stream>>>(from, to, rows, cols, padded);
}

void launch_repeat_scale(const float* from, float* to, int64_t count, cudaStream_t stream) {
  repeat_scale_kernel<<<blocks_of(count), kThreads, 0, stream>>>(from, to, count);
}

void launch_spread_bias(const void* from, DType from_type, void* to, DType to_type, int64_t rows, int64_t cols,
                        cudaStream_t stream) {
  with_float_type(from_type, [&]<typename From>(From) {
    with_float_type(to_type, [&]<typename To>(To) {
      spread_bias_kernel<<<blocks_of(rows * cols), kThreads, 0, stream>>>(static_cast<const From*>(from),
                                                                          static_cast<To*>(to), rows * cols, cols);
    });
  });
}

void launch_scale_result(const ScaledResult& result, cudaStream_t stream) {
  with_float_type(result.out_dtype, [&]<typename T>(T) {
    with_float_type(result.bias_dtype, [&]<typename Bias>(Bias) {
      launch_overlapped(scale_result_kernel<T, Bias>, {blocks_of(result.m * result.n / 4), kThreads}, stream, result);
    });
  });
}

}  // namespace octet::cuda
