// Launchers of the activation fusions. Matrices are contiguous [rows, cols]; null results are not made. Every value
// between the members rounds to its declared type. They return without waiting.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/precision/quantize.h"

namespace octet::cuda {

// biased = x + bias, y = gelu(biased), amax = max |y|. dtype (of x, biased, y) f32 or bf16; bias f32 or dtype, [cols],
// or null, for tiles: then x is biased. cols is a multiple of 16 bytes where there is a bias.
struct BiasGelu {
  bool tanh_form;
  DType dtype, bias_type;
  const void *x, *bias;
  void *biased, *y;
  float* amax;
  int64_t rows, cols;
  uint32_t* counters;  // [kAmaxWords] of DeviceContext::counters, where an amax is wanted; not for tiles
  int sm_count;        // of the device; not for tiles
};
void launch_bias_gelu(const BiasGelu& job, cudaStream_t stream);

// dx = dy gelu'(x), amax = max |dx|.
struct GeluGrad {
  bool tanh_form;
  DType dtype;
  const void *x, *dy;
  void* dx;
  float* amax;
  int64_t rows, cols;
  uint32_t* counters;  // as above
  int sm_count;
};
void launch_gelu_grad(const GeluGrad& job, cudaStream_t stream);

// silu = gate sigmoid(gate), y = silu * up, amax = max |y|.
struct Swiglu {
  DType dtype;
  const void *gate, *up;
  void *silu, *y;
  float* amax;
  int64_t rows, cols;
  uint32_t* counters;  // as above
  int sm_count;
};
void launch_swiglu(const Swiglu& job, cudaStream_t stream);

// dsilu = dy * up, dgate = dsilu silu'(gate), dup = dy * silu; silu is read where it was kept, else made again (and
// written to silu_out where wanted). amaxes of dgate and dup.
struct SwigluGrad {
  DType dtype;
  const void *gate, *up, *dy, *silu;
  void *dsilu, *dgate, *dup, *silu_out;
  float *amax_dgate, *amax_dup;
  int64_t rows, cols;
  uint32_t* counters;  // [2 kAmaxWords], as above
  int sm_count;
};
void launch_swiglu_grad(const SwigluGrad& job, cudaStream_t stream);

// --- with e4m3 codes and a scale a row, in one pass (common/quantize_rows.cuh): y = fn(x + bias), or fn(x) * up.

// bf16; cols, the strides and where columns begin are multiples of 8. job: codes, scale_inv and amax.
struct ActivationRows {
  Activation fn;
  DType bias_type;     // f32 or bf16
  const void *x, *up;  // [rows, cols], columns of rows that lie `stride` elements apart; up may be null
  int64_t x_stride, up_stride;
  const void* bias;  // [cols], may be null; not with up
  QuantizeJob job;
};
// Gated by relu: none of the models' graphs has it.
bool takes_activation_rows(Activation fn, bool gated);
void launch_activation_rows(const ActivationRows& rows, cudaStream_t stream);

// --- in tiles of 128 x 128: with codes, their transpose and sums over rows in the same pass. bf16, gradients of gelu
// in tanh form; cols and, where there are transposed codes, rows multiples of 16.

// What is made of a matrix [rows, cols] while its tiles are in registers. Codes: those of the formats in takes_codes.
struct TileEnd {
  bool quantizes = false;  // else job.amax alone
  Grouping grouping = Grouping::kTensor;
  QuantizeJob job;
  float* row_sums = nullptr;  // [cols]
  float* scratch = nullptr;   // tile_end_scratch(rows, cols) bytes, where there are row_sums
};
int64_t tile_end_scratch(int64_t rows, int64_t cols);
// Activations: e4m3; gradients: e5m2 per tensor, e4m3 in blocks (recipes fp8-delayed and fp8-block).
bool takes_codes(bool gradient, Grouping grouping, DType format);

void launch_gelu_tiles(const BiasGelu& job, const TileEnd& end, cudaStream_t stream);  // end.quantizes
void launch_gelu_grad_tiles(const GeluGrad& job, const TileEnd& end, cudaStream_t stream);
void launch_swiglu_tiles(const Swiglu& job, const TileEnd& end, cudaStream_t stream);  // end.quantizes
// Codes only: a block makes dgate or dup, and what it reads must not be overwritten by the other.
void launch_swiglu_grad_tiles(const SwigluGrad& job, const TileEnd& dgate, const TileEnd& dup,
                              cudaStream_t stream);  // both quantize
// Of a gradient. counters: of DeviceContext.
void launch_plain_tiles(const void* x, const TileEnd& end, uint32_t* counters, cudaStream_t stream);

}  // namespace octet::cuda
