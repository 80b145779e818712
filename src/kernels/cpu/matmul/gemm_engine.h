// Microkernels that multiply packed panels into float32 tiles: one engine per instruction set. gemm.cc does blocking
// and threading.
#pragma once

#include "kernels/cpu/matmul/matrix_view.h"

namespace octet::cpu {

// Packed A: panels of `mr` logical rows, packed B: panels of `nr` logical columns, both `ks` deep (rounded up to `kr`),
// zero-padded; the layout inside a panel is defined by the engine.
struct GemmEngine {
  const char* name;
  int64_t mr, nr, kr;
  int64_t element_bytes;
  bool integer_sums;  // the tile holds int32
  // Rows [m0, m0 + rows) of the operand, depth [k0, k0 + ks).
  void (*pack_a)(const MatrixView& a, int64_t m0, int64_t rows, int64_t k0, int64_t ks, void* to);
  void (*pack_b)(const MatrixView& b, int64_t n0, int64_t cols, int64_t k0, int64_t ks, void* to);
  // tile [rows rounded up to mr, ld] (+)= panels of A times panels of B, ld >= cols rounded
  // up to nr.
  void (*multiply)(const void* a, int64_t rows, const void* b, int64_t cols, int64_t ks, float* tile, int64_t ld,
                   bool accumulate);
};

// Float32 in portable vector code: every type is converted while packing.
const GemmEngine& vector_engine();
// AMX bf16 products with float32 sums; null if the CPU, the OS or the build lacks it. Operands must be exact in
// bf16 (see load_run_bf16).
const GemmEngine* amx_engine();
// Int8 codes with int32 sums, exact for depth < kMaxIntegerDepth in any order of summation.
const GemmEngine& int8_engine();
inline constexpr int64_t kMaxIntegerDepth = int64_t{1} << 17;  // 128 * 128 * 2^17 = 2^31

}  // namespace octet::cpu
