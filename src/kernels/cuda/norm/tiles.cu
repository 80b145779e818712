// FP8 codes of a norm's result in both directions: tiles of 128 x 128 of y, recomputed from x and the statistics
// (or read where y was stored), end in quantize_tile. Panels of rows run from the last to the first: what the row
// kernel has read last is still in L2.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"

namespace octet::cuda {
namespace {

// y of eight columns of a row, rounded, into a tile's part.
template <typename T>
__device__ __forceinline__ void recompute(const NormForward& p, int64_t row, int64_t column, float mean, float rstd,
                                          const float (&weight)[kGroup], const float (&bias)[kGroup],
                                          float (&x)[kGroup]) {
  const int64_t at = row * p.cols + column;
  if (p.y != nullptr) {
    load_packed<kGroup>(static_cast<const T*>(p.y) + at).unpack(x);
    return;
  }
  load_packed<kGroup>(static_cast<const T*>(p.sum != nullptr ? p.sum : p.x) + at).unpack(x);
  if (p.addend != nullptr && p.sum == nullptr) {
    float addend[kGroup];
    load_packed<kGroup>(static_cast<const T*>(p.addend) + at).unpack(addend);
    unroll<kGroup>([&](int i) { x[i] = rounded<T>(x[i] + addend[i]); });
  }
  unroll<kGroup>([&](int i) { x[i] = fmaf((x[i] - mean) * rstd, weight[i], bias[i]); });
}

template <typename T, typename Code, ScaleLayout kLayout, bool kVector>
__global__ void __launch_bounds__(kTileThreads)
    norm_tiles_kernel(const NormForward p, const QuantizeJob job, unsigned across) {
  __shared__ TileScratch scratch;
  griddep_wait();
  griddep_launch_dependents();
  const int64_t r0 = int64_t{gridDim.x / across - 1 - blockIdx.x / across} * kTile;
  const int64_t c0 = int64_t{blockIdx.x % across} * kTile;
  TilePart<T> part = {};
  const int64_t row = r0 + part.row(), column = c0 + part.col();
#pragma unroll
  for (int half = 0; half < kPartCols; half += kGroup) {
    if (column + half >= p.cols) break;
    float weight[kGroup], bias[kGroup];
    load_channels(p.weight, p.weight_dtype, column + half, weight);
    if (p.layer) {
      load_channels(p.bias, p.bias_dtype, column + half, bias);
    } else {  // with mean 0 and bias -0 the bits of a product alone
#pragma unroll
      for (float& value : bias) value = -0.0f;
    }
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) {
      if (row + i >= p.rows) break;
      float x[kGroup];
      recompute<T>(p, row + i, column + half, p.mean[row + i], p.rstd[row + i], weight, bias, x);
#pragma unroll
      for (int j = 0; j < kGroup; j += 2) part.set(i, half + j, x[j], x[j + 1]);
    }
  }
  quantize_tile<kLayout, Code, kVector>(part, r0, c0, job, scratch);
}

}  // namespace

void launch_norm_tiles(const NormForward& call, cudaStream_t stream) {
  const NormQuantize& q = call.quantize;
  QuantizeJob job{.rows = call.rows,
                  .cols = call.cols,
                  .scale = q.scale,
                  .formula = q.formula,
                  .codes = static_cast<uint8_t*>(q.codes),
                  .codes_t = static_cast<uint8_t*>(q.codes_t),
                  .scale_inv = q.scale_inv,
                  .scale_inv_t = q.scale_inv_t,
                  .amax = call.amax};
  job.set_vector(call.x);
  const auto across = static_cast<unsigned>((call.cols + kTile - 1) / kTile);
  const auto blocks = across * static_cast<unsigned>((call.rows + kTile - 1) / kTile);
  const auto launch = [&](auto kernel) {
    launch_overlapped(kernel, {blocks, kTileThreads}, stream, call, job, across);
  };
  with_f32_or_bf16(call.dtype, [&]<typename T>(T) {
    with_fp8_type(q.format, [&]<typename Code>(Code) {
      if (q.scaling == ScaleLayout::kTensor) {
        launch(job.vector ? norm_tiles_kernel<T, Code, ScaleLayout::kTensor, true>
                          : norm_tiles_kernel<T, Code, ScaleLayout::kTensor, false>);
      } else {
        launch(job.vector ? norm_tiles_kernel<T, Code, ScaleLayout::kRow128, true>
                          : norm_tiles_kernel<T, Code, ScaleLayout::kRow128, false>);
      }
    });
  });
}

}  // namespace octet::cuda
