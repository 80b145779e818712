// GEMM of any float types with float32 accumulation; scale, addend and rounding in the epilogue. Decodes FP8 codes
// while packing, and needs no library.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cpu/matmul/gemm_engine.h"
#include "kernels/cpu/matmul/gemm_output.h"

namespace octet::cpu {

// Scratch is divided among threads; fewer threads run if it is small. Needs at least gemm_scratch_bytes().
void gemm(const GemmEngine& engine, const MatrixView& a, const MatrixView& b, const GemmOutput& out,
          std::span<std::byte> scratch);
int64_t gemm_scratch_bytes();

}  // namespace octet::cpu
