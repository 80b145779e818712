// Scale factors and biases in the layouts cuBLASLt reads. Device pointers; the work goes on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

// from [R, C] -> to [C, R]
void launch_transpose_scales(const float* from, float* to, int64_t rows, int64_t cols, cudaStream_t stream);
// from [R, C] -> to [R, padded], what is added undefined
void launch_pad_scales(const float* from, float* to, int64_t rows, int64_t cols, int64_t padded, cudaStream_t stream);
// from [1] -> to [count]
void launch_repeat_scale(const float* from, float* to, int64_t count, cudaStream_t stream);
// from [N] f32, bf16 or f16 -> to [rows, N] of any of them, every row the same
void launch_spread_bias(const void* from, DType from_type, void* to, DType to_type, int64_t rows, int64_t cols,
                        cudaStream_t stream);

}  // namespace octet::cuda
