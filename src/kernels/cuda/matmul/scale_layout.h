// Scale factors and biases in the layouts cuBLASLt reads, and scales applied to a result. Device pointers; the work
// goes on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/matmul/gemv.h"

namespace octet::cuda {

// from [R, C] -> to [R, padded], what is added undefined
void launch_pad_scales(const float* from, float* to, int64_t rows, int64_t cols, int64_t padded, cudaStream_t stream);
// from [1] -> to [count]
void launch_repeat_scale(const float* from, float* to, int64_t count, cudaStream_t stream);
// from [N] f32, bf16 or f16 -> to [rows, N] of any of them, every row the same
void launch_spread_bias(const void* from, DType from_type, void* to, DType to_type, int64_t rows, int64_t cols,
                        cudaStream_t stream);

// sums [M, N] * row_scale [M] * col_scale [N] + c [M, N] + bias [N], rounded once, to the parts; what is null is left
// out, a part's result too. N and the parts' columns are multiples of 4; c of out_dtype, it may be the only part's
// result.
struct ScaledResult {
  int64_t m = 0, n = 0;
  const float* sums = nullptr;
  const float* row_scale = nullptr;
  const float* col_scale = nullptr;
  const void* c = nullptr;
  const void* bias = nullptr;
  DType bias_dtype = DType::kF32;
  DType out_dtype = DType::kBF16;  // f32, bf16 or f16, as bias_dtype
  GemvPart parts[kGemvParts];      // as Gemv's
  int part_count = 1;
};
void launch_scale_result(const ScaledResult& result, cudaStream_t stream);

}  // namespace octet::cuda
