// Products with few rows, as in decoding: the time is that of reading the weights once. Device pointers; the work goes
// on `stream`; the same bits every run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/matmul/choose.h"

namespace octet::cuda {

inline constexpr int kGemvParts = 4;

// Columns [begin, end) of the product, as a matrix of its own.
struct GemvPart {
  int64_t begin = 0, end = 0;
  void* out = nullptr;  // [M, end - begin] of out_dtype
};

// x [M, K] weights [N, K]^T, times scales, + c [M, N] + bias [N]; rounded once. What is null is left out.
struct Gemv {
  int64_t m = 0, n = 0, k = 0;  // rows of x and of weights are whole 16-byte pieces
  DType dtype = DType::kBF16;   // of x and weights: bf16, or codes e4m3
  const void* x = nullptr;
  const void* weights = nullptr;
  const float* x_scale = nullptr;       // [M], [1], or in blocks [ceil(K/128), M]
  const float* weight_scale = nullptr;  // [N], [1], or in blocks [ceil(N/128), ceil(K/128)]
  bool x_scale_rows = false, weight_scale_rows = false;
  bool blocks = false;         // both scales in blocks of 128 along K
  bool weights_ready = false;  // nothing earlier on the stream's graph writes the weights: they are read ahead
  const void* c = nullptr;     // of out_dtype; may be the result
  const void* bias = nullptr;
  DType bias_dtype = DType::kF32, out_dtype = DType::kBF16;  // f32, bf16 or f16
  GemvPart parts[kGemvParts];                                // side by side, together [0, N)
  int part_count = 1;
};

void launch_gemv(const Gemv& gemv, const GemvPlan& plan, cudaStream_t stream);

}  // namespace octet::cuda
