// Launchers of the fusions around activations, their gradients and plain gradients. Matrices are contiguous
// [rows, cols] but where a stride says otherwise; null results are not made. Every value between the members rounds to
// its declared type. They return without waiting.
//
// Three schedules: pointwise (an amax at most), rows (codes with a scale a row), tiles of 128 x 128 (codes in blocks or
// under one scale, transposed codes, column sums).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/precision/quantize.h"

namespace octet::cuda {

// y of an activation a = fn(x): a, a * a, or a * up.
enum class ActivationForm : uint8_t { kPlain, kSquared, kGated };

// Which of them have kernels, those that models have; the others run member by member. A gate of exact gelu has rows
// only.
constexpr bool has_activation_kernels(Activation fn, ActivationForm form, bool rows = false) {
  if (form == ActivationForm::kSquared) return fn == Activation::kRelu;
  if (form == ActivationForm::kPlain) return fn != Activation::kSilu;
  return fn == Activation::kSilu || fn == Activation::kGeluTanh || (rows && fn == Activation::kGeluErf);
}

// biased = x + bias, a = fn(biased), y by the form, amax = max |y|. A bias only without a gate.
struct ActivationForward {
  Activation fn;
  ActivationForm form;
  DType dtype, bias_type;       // f32 or bf16; of x, up and results; of bias: dtype or f32
  const void *x, *up, *bias;    // [rows, cols], the same (kGated), [cols]; up and bias may be null
  int64_t x_stride, up_stride;  // elements between rows: cols, but for the schedule of rows
  void *biased, *a, *y;         // [rows, cols], may be null
  float* amax;                  // [1], may be null
  int64_t rows, cols;
  uint32_t* counters;  // [kAmaxWords] of DeviceContext::counters; pointwise only
  int sm_count;
};
// cols is a multiple of 16 bytes where there is a bias; an amax in bf16 only, and so a kPlain without a bias.
void launch_activation_pointwise(const ActivationForward& job, cudaStream_t stream);

// kPlain: dx = dy fn'(x). kSquared: with da = 2 (dy a): dx = da fn'(x). kGated: with da = dy up: dx = da fn'(x) and
// dup = dy a. a is read where it was kept, else recomputed (and written to a_out where that is not null).
struct ActivationGradient {
  Activation fn;
  ActivationForm form;
  DType dtype;
  const void *x, *up, *dy, *a;  // [rows, cols]; up and dup of kGated only
  void *da, *dx, *dup, *a_out;  // [rows, cols], may be null; da and a_out of kGated only
  float *amax, *amax_up;        // [1], may be null: of dx, of dup
  int64_t rows, cols;
  uint32_t* counters;  // [2 kAmaxWords], as above
  int sm_count;
};
// kPlain and whatever has an amax: bf16 only.
void launch_activation_grad_pointwise(const ActivationGradient& job, cudaStream_t stream);

// --- rows: y in bf16 to e4m3 or i8 codes with a scale a row, in one pass (common/quantize_per_row.cuh); cols, the
// strides and where columns begin are multiples of 8. quantize: codes, scale_inv and amax; of job only what y is made
// of.
void launch_activation_rows(const ActivationForward& job, QuantizeJob quantize, DType format, cudaStream_t stream);

// --- tiles, bf16; cols and, where there are transposed codes, rows are multiples of 16.

// Epilogue of a matrix [rows, cols] whose tiles are in registers. Codes: those of the formats in takes_codes.
struct TileEnd {
  bool quantizes = false;  // else job.amax alone
  ScaleLayout grouping = ScaleLayout::kTensor;
  QuantizeJob job;
  float* column_sums = nullptr;  // [cols]
  float* scratch = nullptr;      // tile_end_scratch(rows, cols) bytes, where there are column_sums
};
int64_t tile_end_scratch(int64_t rows, int64_t cols);
// Activations: e4m3; gradients: e5m2 per tensor, e4m3 in blocks (recipes fp8-delayed and fp8-block).
bool takes_codes(bool gradient, ScaleLayout grouping, DType format);

void launch_activation_tiles(const ActivationForward& job, const TileEnd& end, cudaStream_t stream);  // end.quantizes
// kGated: codes only, of dx and of dup; a block makes one of them, and what it reads must not be overwritten by the
// other. kPlain and kSquared: dx may be wanted too, and end may have column sums.
void launch_activation_grad_tiles(const ActivationGradient& job, const TileEnd& dx, const TileEnd& dup,
                                  cudaStream_t stream);
// Of a gradient. counters: of DeviceContext.
void launch_plain_tiles(const void* x, const TileEnd& end, uint32_t* counters, cudaStream_t stream);

}  // namespace octet::cuda
