// Launchers of quantize: plain types, shared by the rows (kernels.cc), the kernels and fusions that end in a quantize.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/precision/choose.h"

namespace octet::cuda {

// Where a scale of kRow128 lies: of row `row` and columns 128 `group` .. of a matrix of `rows`.
constexpr int64_t row128_scale_index(int64_t row, int64_t group, int64_t rows) { return group * rows + row; }

// What makes a scale of an amax (docs/numerics.md): scale_formula.cuh.
struct ScaleFormula {
  float max = 448;    // of the format
  int margin = 0;     // scales divided by 2^margin
  bool pow2 = false;  // rounded down to a power of two
};

// Results that are not used are null. Offsets are int64: a tensor may have more than 2^31 elements.
struct QuantizeJob {
  int64_t rows = 0, cols = 0;
  const float* scale = nullptr;  // [1], kTensor only; a positive number
  // kTensor, in the place of `scale`: it is made from this amax [1], and stored with its inverse where these want it.
  const float* scale_from = nullptr;
  float *made_scale = nullptr, *made_scale_inv = nullptr;
  ScaleFormula formula;
  bool vector = false;                 // 16-byte accesses: set by set_vector
  uint8_t* codes = nullptr;            // [rows, cols]
  uint8_t* codes_t = nullptr;          // [cols, rows]
  float* scale_inv = nullptr;          // [1], [rows], [cols / 128, rows] or [rows / 128, cols / 128]
  float* scale_inv_t = nullptr;        // the same of the transposed matrix
  float* amax = nullptr;               // [1]; must be 0 before the tiles run
  const uint32_t* col_amax = nullptr;  // [cols], kRow with codes_t: bits of the columns' amaxes
  bool next_reads_ahead = false;       // griddep_begin

  // Whether whole 16-byte accesses fit every row of x, codes and codes_t.
  void set_vector(const void* x) {
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    vector =
        cols % 16 == 0 && (codes_t == nullptr || rows % 16 == 0) && aligned(x) && aligned(codes) && aligned(codes_t);
  }
};

// What choose_quantize is told of a job.
QuantizeDesc describe_quantize(const QuantizeJob& job, ScaleLayout grouping, const void* x);
// x [rows, cols], f32 or bf16, to codes of `format`. Clears amax, and col_amax (scratch of [cols] u32: kRow only).
void launch_quantize(QuantizeJob job, ScaleLayout grouping, DType format, const void* x, DType type, uint32_t* col_amax,
                     cudaStream_t stream);

// codes [rows, cols], a byte each, to codes_t [cols, rows].
void launch_transpose_codes(const void* codes, void* codes_t, int64_t rows, int64_t cols, cudaStream_t stream);

}  // namespace octet::cuda
