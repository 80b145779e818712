// Matrix product from any float types with float32 sums, scale, addend and rounding in the epilogue. Our own: it reads
// FP8 codes directly while packing, and it is there when no library is.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cpu/matmul/gemm_engine.h"
#include "kernels/cpu/matmul/gemm_output.h"

namespace octet::cpu {

// Scratch is split among threads; fewer threads run when it is small. Needs gemm_scratch_bytes() at least.
void gemm(const GemmEngine& engine, const MatrixView& a, const MatrixView& b, const GemmOutput& out,
          std::span<std::byte> scratch);
int64_t gemm_scratch_bytes();

}  // namespace octet::cpu
