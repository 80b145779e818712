// GEMMs with few rows, as in decoding: bound by reading b once. b is not packed; each element of the result is the dot
// product of two stored rows.
//
// The summation order of a row does not depend on the number of rows, so results do not depend on the batch.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cpu/matmul/gemm_output.h"
#include "kernels/cpu/matmul/matrix_view.h"

namespace octet::cpu {

inline constexpr int64_t kGemvRows = 8;

// Types: f32 | bf16 times bf16 with float32 sums, i8 times i8 with int32 sums (exact for depth < kMaxIntegerDepth).
bool gemv_takes(DType a, DType b);

// a [M, K] with M <= kGemvRows, b [N, K], both K-contiguous, without operand scales (GemmOutput's are applied).
// Needs gemv_scratch_bytes(M, K) of scratch.
void gemv(const MatrixView& a, const MatrixView& b, const GemmOutput& out, std::span<std::byte> scratch);
int64_t gemv_scratch_bytes(int64_t rows, int64_t depth);

}  // namespace octet::cpu
