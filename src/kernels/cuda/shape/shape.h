// Launchers of the kernels that move elements and of reductions. Buffers are contiguous, results apart from operands.
// They return without waiting.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

// `rows` runs of `width` bytes between two matrices of bytes with these row pitches.
void launch_copy_block(const void* from, int64_t from_pitch, void* to, int64_t to_pitch, int64_t rows, int64_t width,
                       cudaStream_t stream);

// y [count, width bytes] = rows index[0 .. count) of x [rows, width bytes]; a row outside x is zeros.
void launch_select_rows(const void* x, int64_t rows, const int32_t* index, void* y, int64_t count, int64_t width,
                        cudaStream_t stream);

// y f32[segments, cols] = the mean of rows [starts[s], starts[s + 1]) of x [rows, cols], f32 or bf16, cut to its rows;
// 0 where there are none.
void launch_segment_mean(DType dtype, const void* x, int64_t rows, int64_t cols, const int32_t* starts,
                         int64_t segments, float* y, cudaStream_t stream);

// y [cols, rows] = x [rows, cols], elements of 1, 2, 4 or 8 bytes.
void launch_transpose(const void* x, void* y, int64_t rows, int64_t cols, int64_t element_bytes, cudaStream_t stream);

enum class Reduction : uint8_t { kSum, kMax, kAmax };

// y [cols] f32 over the rows of x [rows, cols]; y [1] f32 over all elements. x: f32 or bf16. Partial results go through
// `scratch`; their order depends on the shape alone. `counters`: DeviceContext::counters. Bytes of scratch:
int64_t reduce_rows_scratch(int64_t rows, int64_t cols);
int64_t reduce_all_scratch(int64_t count);
void launch_reduce_rows(Reduction kind, DType dtype, const void* x, float* y, int64_t rows, int64_t cols,
                        float* scratch, uint32_t* counters, cudaStream_t stream);
void launch_reduce_all(Reduction kind, DType dtype, const void* x, float* y, int64_t count, float* scratch,
                       uint32_t* counters, cudaStream_t stream);

}  // namespace octet::cuda
