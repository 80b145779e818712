// Gradients of the norms. Blocks stay: each walks rows block, block + blocks, ... with the next row's loads in flight,
// keeps its sums over rows (dweight, dbias, column sums) in registers or, for wide rows, in shared memory, and writes
// them once; a second kernel adds them up in block order: the same bits every run.
//
// With h = (x - mean) rstd (rms_norm: mean 0) and g = dy weight:
//   dx = rstd (g - mean(g) - h mean(g h)), without mean(g) for rms_norm;  dweight = sum dy h;  dbias = sum dy.
// Bound by memory: x, dy (and the addend) read, dx written.
#pragma once

#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"

namespace octet::cuda {

template <typename T>
using Packed = Vec<T, kGroup>;

template <typename T, bool kLayer, bool kColumnSum, int kGroups, bool kShared>
__global__ void __launch_bounds__(512) norm_gradient_kernel(const NormGradient p) {
  __shared__ float scratch[64];
  extern __shared__ float shared_sums[];
  RowTeam<false> team{scratch};
  const int thread = threadIdx.x, threads = blockDim.x;
  const auto column_of = [&](int g) { return int64_t{g * threads + thread} * kGroup; };
  constexpr int kSums = 1 + kLayer + kColumnSum;
  float sums[kShared ? 1 : kSums][kShared ? 1 : kGroups][kGroup];
  const auto add_to = [&](int which, int g, const float(&terms)[kGroup]) {
    if constexpr (kShared) {  // every thread has its own groups: no barrier
      float* to = shared_sums + int64_t{which} * kGroups * threads * kGroup + column_of(g);
      float total[kGroup];
      load(to, total);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) total[i] += terms[i];
      store(to, total);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) sums[which][g][i] += terms[i];
    }
  };
#pragma unroll
  for (int which = 0; which < kSums; ++which) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if constexpr (kShared) {
        const float zeros[kGroup] = {};
        store(shared_sums + int64_t{which} * kGroups * threads * kGroup + column_of(g), zeros);
      } else {
#pragma unroll
        for (float& value : sums[which][g]) value = 0;
      }
    }
  }

  Packed<T> next_x[kGroups], next_dy[kGroups];
  const auto fetch = [&](int64_t row) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (row >= p.rows || column_of(g) >= p.cols) continue;
      next_x[g] = *reinterpret_cast<const Packed<T>*>(static_cast<const T*>(p.x) + row * p.cols + column_of(g));
      next_dy[g] = *reinterpret_cast<const Packed<T>*>(static_cast<const T*>(p.dy) + row * p.cols + column_of(g));
    }
  };
  const float scale = 1.0f / static_cast<float>(p.cols);
  uint32_t largest = 0;
  fetch(blockIdx.x);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float mean = kLayer ? p.mean[row] : 0.0f, rstd = p.rstd[row];
    Packed<T> x[kGroups], dy[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) x[g] = next_x[g], dy[g] = next_dy[g];
    fetch(row + gridDim.x);
    float sum_g = 0, sum_gh = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column_of(g) >= p.cols) continue;
      float weight[kGroup], dy_h[kGroup], dys[kGroup];
      load_channels(p.weight, p.weight_dtype, column_of(g), weight);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float h = (to_float(x[g].at[i]) - mean) * rstd, d = to_float(dy[g].at[i]), grad = d * weight[i];
        dys[i] = d, dy_h[i] = d * h;
        sum_g += grad;
        sum_gh = fmaf(grad, h, sum_gh);
      }
      add_to(0, g, dy_h);
      if constexpr (kLayer) add_to(1, g, dys);
    }
    const float mean_g = kLayer ? team.sum(sum_g) * scale : 0.0f, mean_gh = team.sum(sum_gh) * scale;
    if (p.dx == nullptr && p.sum == nullptr && p.amax == nullptr && !kColumnSum) continue;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column_of(g) >= p.cols) continue;
      const int64_t at = row * p.cols + column_of(g);
      float weight[kGroup], out[kGroup];
      load_channels(p.weight, p.weight_dtype, column_of(g), weight);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float h = (to_float(x[g].at[i]) - mean) * rstd;
        out[i] = rstd * fmaf(-h, mean_gh, to_float(dy[g].at[i]) * weight[i] - mean_g);
      }
      if (p.dx != nullptr) store(static_cast<T*>(p.dx) + at, out);
      if (p.addend == nullptr) continue;
      float other[kGroup];
      load(static_cast<const T*>(p.addend) + at, other);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        out[i] = rounded<T>(rounded<T>(out[i]) + other[i]);
        largest = max(largest, magnitude_bits(out[i]));
      }
      if (p.sum != nullptr) store(static_cast<T*>(p.sum) + at, out);
      if constexpr (kColumnSum) add_to(kSums - 1, g, out);
    }
  }
  if (p.amax != nullptr) {
    largest = team.max_bits(largest);
    if (thread == 0) raise_amax(p.amax, largest);
  }
  // partials [kSums, blocks, C]
#pragma unroll
  for (int which = 0; which < kSums; ++which) {
    float* to = p.partials + (int64_t{which} * gridDim.x + blockIdx.x) * p.cols;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column_of(g) >= p.cols) continue;
      if constexpr (kShared) {
        float total[kGroup];
        load(shared_sums + int64_t{which} * kGroups * threads * kGroup + column_of(g), total);
        store(to + column_of(g), total);
      } else {
        store(to + column_of(g), sums[which][g]);
      }
    }
  }
}

template <typename T, bool kLayer, bool kColumnSum>
void launch_norm_gradient_rows(const NormGradient& call, cudaStream_t stream) {
  const int groups = static_cast<int>((call.cols + kGroup - 1) / kGroup), blocks = call.blocks;
  const auto threads_of = [&](int each) { return ((groups + each - 1) / each + 31) / 32 * 32; };
  if (groups <= 128) {
    norm_gradient_kernel<T, kLayer, kColumnSum, 1, false><<<blocks, threads_of(1), 0, stream>>>(call);
  } else if (groups <= 1024) {
    norm_gradient_kernel<T, kLayer, kColumnSum, 2, false><<<blocks, threads_of(2), 0, stream>>>(call);
  } else {
    constexpr int kSums = 1 + kLayer + kColumnSum;
    const size_t shared = size_t{kSums} * 4 * static_cast<size_t>(threads_of(4)) * kGroup * sizeof(float);
    const auto kernel = norm_gradient_kernel<T, kLayer, kColumnSum, 4, true>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    kernel<<<blocks, threads_of(4), shared, stream>>>(call);
  }
}

}  // namespace octet::cuda
