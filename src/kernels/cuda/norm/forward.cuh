// layer_norm and rms_norm with a row in registers: read once, statistics in two passes over the registers, and
// whatever is fused (residual, amax, codes) made on the way. Instances per type are in forward_*.cu.
//
// Bound by memory: x (and the addend) read, y, sum or codes written; weights come from the level 1 cache.
#pragma once

#include "kernels/cuda/common/scale_formula.cuh"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"

namespace octet::cuda {

__device__ __forceinline__ void store_codes(DType format, void* codes, int64_t at, const float (&x)[kGroup]) {
  if (format == DType::kE4M3) {
    store(static_cast<e4m3*>(codes) + at, x);
  } else {
    store(static_cast<e5m2*>(codes) + at, x);
  }
}

// y of eight columns, before it rounds to its type.
template <bool kLayer>
__device__ __forceinline__ void normalise(const NormForward& p, int64_t column, float mean, float rstd,
                                          float (&x)[kGroup]) {
  float weight[kGroup];
  load_channels(p.weight, p.weight_dtype, column, weight);
  if constexpr (kLayer) {
    float bias[kGroup];
    load_channels(p.bias, p.bias_dtype, column, bias);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = fmaf((x[i] - mean) * rstd, weight[i], bias[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = x[i] * rstd * weight[i];
  }
}

template <typename T, bool kLayer, int kGroups, bool kWarp>
__global__ void norm_row_kernel(const NormForward p) {
  __shared__ float scratch[64];
  RowTeam<kWarp> team{scratch};
  const int64_t row = kWarp ? int64_t{blockIdx.x} * (blockDim.x >> 5) + (threadIdx.x >> 5) : blockIdx.x;
  if (kWarp && row >= p.rows) return;
  const int thread = team.thread(), threads = team.threads();
  const T* x = static_cast<const T*>(p.x) + row * p.cols;
  float v[kGroups][kGroup];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t column = int64_t{g * threads + thread} * kGroup;
    if (column < p.cols) {
      load(x + column, v[g]);
    } else {
#pragma unroll
      for (float& value : v[g]) value = 0;
    }
  }
  if (p.addend != nullptr) {
    const T* addend = static_cast<const T*>(p.addend) + row * p.cols;
    T* sum = static_cast<T*>(p.sum) + row * p.cols;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t column = int64_t{g * threads + thread} * kGroup;
      if (column >= p.cols) continue;
      float other[kGroup];
      load(addend + column, other);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) v[g][i] = rounded<T>(v[g][i] + other[i]);
      if (p.sum != nullptr) store(sum + column, v[g]);
    }
  }

  const float scale = 1.0f / static_cast<float>(p.cols);
  float mean = 0, squares = 0;
  if constexpr (kLayer) {
    float sum = 0;
#pragma unroll
    for (auto& group : v) {
#pragma unroll
      for (float value : group) sum += value;
    }
    mean = team.sum(sum) * scale;
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (int64_t{g * threads + thread} * kGroup >= p.cols) continue;
#pragma unroll
    for (float value : v[g]) squares = fmaf(value - mean, value - mean, squares);
  }
  const float rstd = rsqrtf(team.sum(squares) * scale + p.eps);
  if (thread == 0) {
    if (p.mean != nullptr) p.mean[row] = mean;
    if (p.rstd != nullptr) p.rstd[row] = rstd;
  }

  const NormQuantize& q = p.quantize;
  T* y = static_cast<T*>(p.y) + row * p.cols;
  const bool coded = q.codes != nullptr || q.scale_inv != nullptr;
  const float given = q.scaling == CodeScaling::kTensor ? *q.scale : 1.0f;
  const ScaleFormula formula{q.format_max, q.margin, q.pow2};
  const int64_t blocks = (p.cols + 127) / 128;
  uint32_t largest = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t column = int64_t{g * threads + thread} * kGroup;
    uint32_t bits = 0;
    if (column < p.cols) {
      normalise<kLayer>(p, column, mean, rstd, v[g]);
      if (p.y != nullptr) store(y + column, v[g]);
#pragma unroll
      for (float& value : v[g]) {
        value = rounded<T>(value);
        bits = max(bits, magnitude_bits(value));
      }
      if (q.scaling == CodeScaling::kTensor && q.codes != nullptr) {
        float scaled[kGroup];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) scaled[i] = v[g][i] * given;
        store_codes(q.format, q.codes, row * p.cols + column, scaled);
      }
    }
    largest = max(largest, bits);
    if (q.scaling == CodeScaling::kRow128 && coded) {  // a block of 128 is 16 threads
#pragma unroll
      for (int lanes = 8; lanes > 0; lanes >>= 1) bits = max(bits, __shfl_xor_sync(kWholeWarp, bits, lanes));
      if (column < p.cols) {
        const float block_scale = formula(bits);
        if (q.scale_inv != nullptr && thread % 16 == 0) {
          q.scale_inv[row * blocks + column / 128] = __fdiv_rn(1.0f, block_scale);
        }
#pragma unroll
        for (float& value : v[g]) value *= block_scale;
        if (q.codes != nullptr) store_codes(q.format, q.codes, row * p.cols + column, v[g]);
      }
    }
  }
  if (q.scaling == CodeScaling::kRow && coded) {
    const float row_scale = formula(team.max_bits(largest));
    if (q.scale_inv != nullptr && thread == 0) q.scale_inv[row] = __fdiv_rn(1.0f, row_scale);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t column = int64_t{g * threads + thread} * kGroup;
      if (column >= p.cols || q.codes == nullptr) continue;
#pragma unroll
      for (float& value : v[g]) value *= row_scale;
      store_codes(q.format, q.codes, row * p.cols + column, v[g]);
    }
  }
  if (q.scaling == CodeScaling::kTensor && row == 0 && thread == 0) {
    if (q.scale_inv != nullptr) *q.scale_inv = __fdiv_rn(1.0f, given);
    if (q.scale_inv_t != nullptr) *q.scale_inv_t = __fdiv_rn(1.0f, given);
  }
  if (p.amax != nullptr) {
    largest = team.max_bits(largest);
    if (thread == 0) raise_amax(p.amax, largest);
  }
}

// Columns to threads: a warp a row up to 1024 columns, above that a block with as little idle as 3 or 4 groups allow.
template <typename T, bool kLayer>
void launch_norm_rows(const NormForward& call, cudaStream_t stream) {
  const int64_t groups = (call.cols + kGroup - 1) / kGroup;
  if (groups <= 128) {
    constexpr int kRows = 4;
    const auto grid = static_cast<unsigned>((call.rows + kRows - 1) / kRows);
    switch ((groups + 31) / 32) {
      case 1: norm_row_kernel<T, kLayer, 1, true><<<grid, 32 * kRows, 0, stream>>>(call); break;
      case 2: norm_row_kernel<T, kLayer, 2, true><<<grid, 32 * kRows, 0, stream>>>(call); break;
      case 3: norm_row_kernel<T, kLayer, 3, true><<<grid, 32 * kRows, 0, stream>>>(call); break;
      default: norm_row_kernel<T, kLayer, 4, true><<<grid, 32 * kRows, 0, stream>>>(call); break;
    }
    return;
  }
  const auto grid = static_cast<unsigned>(call.rows);
  const int64_t by_3 = (groups + 95) / 96 * 32, by_4 = (groups + 127) / 128 * 32;
  if (by_3 * 3 < by_4 * 4 && by_3 <= 1024) {
    norm_row_kernel<T, kLayer, 3, false><<<grid, static_cast<unsigned>(by_3), 0, stream>>>(call);
  } else {
    norm_row_kernel<T, kLayer, 4, false><<<grid, static_cast<unsigned>(by_4), 0, stream>>>(call);
  }
}

}  // namespace octet::cuda
