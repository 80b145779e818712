// Launchers of our own kernels around products. Device pointers; the work goes on `stream`; the same bits every run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/operand.h"
#include "kernels/cuda/matmul/choose.h"

namespace octet::cuda {

// --- products with few rows, as in decoding: the time is that of reading the weights once.
inline constexpr int kGemvParts = 4;

// Columns [begin, end) of the product, as a matrix of its own.
struct GemvPart {
  int64_t begin = 0, end = 0;
  void* out = nullptr;  // [M, end - begin] of out_dtype
};

// x [M, K] weights [N, K]^T, times scales, + c [M, N] + bias [N]; rounded once. What is null is left out.
struct Gemv {
  int64_t m = 0, n = 0, k = 0;  // rows of x and of weights are whole 16-byte pieces
  DType dtype = DType::kBF16;   // of x and weights: bf16, or codes e4m3 or i8
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
  // Grouped: weights [experts N, K] and their scales, of which expert e's multiply rows [offsets[e], offsets[e + 1]) of
  // x, at most kGemvRows; no c or bias.
  const int32_t* offsets = nullptr;
  int experts = 0;
};

void launch_gemv(const Gemv& gemv, const GemvPlan& plan, cudaStream_t stream);
// Codes of int8 by any number of rows, not grouped: N and the parts' columns are multiples of 8, both scales are there.
void launch_int8_wgmma(const Gemv& gemv, const Int8Plan& plan, cudaStream_t stream);

// --- The matrix product for everything cuBLASLt refuses: any mixture of types, strides, scalings and odd sizes,
// decoded to float32 while loading, summed in float32. Correct everywhere, fast nowhere. Element (outer, k) lies at
// outer * outer_stride + k * k_stride. With scales, it is multiplied by scale[outer / outer_group * scale_outer + k /
// k_group * scale_k]; the zero point at the same place is taken away before.
struct TiledOperand {
  Operand operand;  // f32, bf16, f16, e4m3, e5m2, i8, i4
  int64_t outer_stride = 0, k_stride = 0;
  const float* scale = nullptr;
  const int8_t* zero = nullptr;
  int64_t outer_group = 1, k_group = 1, scale_outer = 0, scale_k = 0;
};

// out [M, N] = a [M, K] b [K, N] + c; c is absent, [M, N] (may be out itself) or, with c_is_row, [N].
struct TiledGemm {
  int64_t m = 0, n = 0, k = 0;
  TiledOperand a, b;  // outer dims M and N
  Operand c;
  bool c_is_row = false;
  Operand out;  // f32, bf16 or f16, as c
};

void launch_tiled_gemm(const TiledGemm& gemm, cudaStream_t stream);

// --- Scale factors and biases in the layouts cuBLASLt reads, and scales applied to a result. Device pointers; the work
// goes on `stream`.
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
