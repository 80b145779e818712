// Matrix product from any float types with float32 sums, scale, addend and rounding in the epilogue. Our own: it reads
// FP8 codes directly while packing, and it is there when no library is.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cpu/matmul/gemm_engine.h"

namespace octet::cpu {

// out [M, N] = product * factor * row_scale[m] * col_scale[n] + c, rounded once.
struct GemmOutput {
  void* data = nullptr;
  DType dtype = DType::kF32;
  float factor = 1;
  const float* row_scale = nullptr;
  const float* col_scale = nullptr;
  const void* c = nullptr;  // [M, N], or [N] when broadcast; may be `data` itself
  DType c_dtype = DType::kF32;
  bool c_broadcast = false;
};

// Scratch is split among threads; fewer threads run when it is small. Needs gemm_scratch_bytes() at least.
void gemm(const GemmEngine& engine, const MatrixView& a, const MatrixView& b, const GemmOutput& out,
          std::span<std::byte> scratch);
int64_t gemm_scratch_bytes();

}  // namespace octet::cpu
