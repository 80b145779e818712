// compute_scale, update_scales, maxima: a few values.
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
  griddep_wait();
  griddep_launch_dependents();
  store_scale(attrs, __float_as_uint(*amax), scale, scale_inv);
}

// A block a tensor. The history moves up by one, from its end: old and new may be the same memory.
__global__ void __launch_bounds__(kThreads) update_scales_kernel(const __grid_constant__ ScaleTable table) {
  __shared__ uint32_t scratch[32];
  griddep_wait();
  griddep_launch_dependents();
  const ScaleEntry& entry = table.entries[blockIdx.x];
  const float newest = *entry.amax;
  uint32_t most = magnitude_bits(newest);
  for (int64_t end = table.length - 1; end > 0; end -= kThreads) {
    const int64_t i = end - 1 - threadIdx.x;
    const float value = i >= 0 ? entry.history[i] : 0.0f;
    if (!table.newest_only) most = max(most, magnitude_bits(value));
    __syncthreads();
    if (i >= 0 && entry.new_history != nullptr) entry.new_history[i + 1] = value;
  }
  most = block_max(most, scratch);
  if (threadIdx.x != 0) return;
  if (entry.new_history != nullptr) entry.new_history[0] = newest;
  store_scale({entry.max, table.margin, table.pow2}, most, entry.scale, entry.scale_inv);
}

__global__ void __launch_bounds__(kMaximumEntries) maxima_kernel(const __grid_constant__ MaximumTable table) {
  griddep_wait();
  griddep_launch_dependents();
  if (static_cast<int>(threadIdx.x) >= table.count) return;
  const MaximumEntry& entry = table.entries[threadIdx.x];
  if (entry.to != nullptr) *entry.to = max_or_nan(*entry.a, *entry.b);
}

}  // namespace

void launch_compute_scale(const ScaleAttrs& attrs, const float* amax, float* scale, float* scale_inv,
                          cudaStream_t stream) {
  launch_overlapped(compute_scale_kernel, {1, 1}, stream, attrs, amax, scale, scale_inv);
}

void launch_update_scales(const ScaleTable& table, cudaStream_t stream) {
  launch_overlapped(update_scales_kernel, {static_cast<unsigned>(table.count), kThreads}, stream, table);
}

void launch_maxima(const MaximumTable& table, cudaStream_t stream) {
  launch_overlapped(maxima_kernel, {1, kMaximumEntries}, stream, table);
}

}  // namespace octet::cuda
