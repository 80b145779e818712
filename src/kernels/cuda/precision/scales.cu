// compute_scale, update_scales: a few values on one block.
#include "kernels/cuda/precision/scales.h"

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/scale_formula.cuh"

namespace octet::cuda {
namespace {

constexpr int kThreads = 128;

__device__ void store_scale(const ScaleAttrs& attrs, uint32_t amax, float* scale, float* scale_inv) {
  const float value = ScaleFormula{attrs.max, attrs.margin, attrs.pow2}(amax);
  if (scale != nullptr) *scale = value;
  if (scale_inv != nullptr) *scale_inv = 1.0f / value;
}

__global__ void compute_scale_kernel(ScaleAttrs attrs, const float* amax, float* scale, float* scale_inv) {
  wait_for_previous();
  allow_next();
  store_scale(attrs, __float_as_uint(*amax), scale, scale_inv);
}

// The history moves up by one, from its end: old and new may be the same memory.
__global__ void update_scales_kernel(ScaleAttrs attrs, bool newest_only, const float* history, const float* amax,
                                     int64_t length, float* new_history, float* scale, float* scale_inv) {
  __shared__ uint32_t scratch[32];
  wait_for_previous();
  allow_next();
  const float newest = *amax;
  uint32_t most = magnitude_bits(newest);
  for (int64_t end = length - 1; end > 0; end -= kThreads) {
    const int64_t i = end - 1 - threadIdx.x;
    const float value = i >= 0 ? history[i] : 0.0f;
    if (!newest_only) most = max(most, magnitude_bits(value));
    __syncthreads();
    if (i >= 0 && new_history != nullptr) new_history[i + 1] = value;
  }
  most = block_max(most, scratch);
  if (threadIdx.x != 0) return;
  if (new_history != nullptr) new_history[0] = newest;
  store_scale(attrs, most, scale, scale_inv);
}

}  // namespace

void launch_compute_scale(const ScaleAttrs& attrs, const float* amax, float* scale, float* scale_inv,
                          cudaStream_t stream) {
  launch_overlapped(compute_scale_kernel, {1, 1}, stream, attrs, amax, scale, scale_inv);
}

void launch_update_scales(const ScaleAttrs& attrs, bool newest_only, const float* history, const float* amax,
                          int64_t length, float* new_history, float* scale, float* scale_inv, cudaStream_t stream) {
  launch_overlapped(update_scales_kernel, {1, kThreads}, stream, attrs, newest_only, history, amax, length, new_history,
                    scale, scale_inv);
}

}  // namespace octet::cuda
