// The matrix product for everything cuBLASLt refuses: any mixture of types, strides, scalings and odd sizes, decoded to
// float32 while loading, summed in float32. Correct everywhere, fast nowhere.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

// Element (outer, k) lies at outer * outer_stride + k * k_stride. With scales, it is multiplied by
// scale[outer / outer_group * scale_outer + k / k_group * scale_k].
struct TiledOperand {
  const void* data = nullptr;
  DType dtype = DType::kF32;  // f32, bf16, f16, e4m3, e5m2
  int64_t outer_stride = 0, k_stride = 0;
  const float* scale = nullptr;
  int64_t outer_group = 1, k_group = 1, scale_outer = 0, scale_k = 0;
};

// out [M, N] = a [M, K] b [K, N] + c; c is absent, [M, N] (may be out itself) or, with c_is_row, [N].
struct TiledGemm {
  int64_t m = 0, n = 0, k = 0;
  TiledOperand a, b;  // outer dims M and N
  const void* c = nullptr;
  DType c_dtype = DType::kF32;
  bool c_is_row = false;
  void* out = nullptr;
  DType out_dtype = DType::kF32;  // f32, bf16 or f16, as c's
};

void launch_tiled_gemm(const TiledGemm& gemm, cudaStream_t stream);

}  // namespace octet::cuda
