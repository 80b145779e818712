// Our own GEMMs of any float types with float32 accumulation, and of int8 codes; scales, addend and rounding in the
// epilogue. They decode FP8 codes while packing, and need no library.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cpu/matmul/matrix_view.h"

namespace octet::cpu {

// The epilogue: out [M, N] = product * factor * row_scale[m] * col_scale[n] + c, rounded once.
struct GemmOutput {
  void* data = nullptr;
  DType dtype = DType::kF32;
  float factor = 1;
  const float* row_scale = nullptr;
  const float* col_scale = nullptr;
  const void* c = nullptr;  // [M, N], or [N] when broadcast; may alias `data`
  DType c_dtype = DType::kF32;
  bool c_broadcast = false;
};

// Writes rows [m0, m0 + rows) and columns [n0, n0 + cols) of a result `width` columns wide from sums [rows, ld].
using StoreTile = void (*)(const GemmOutput& out, const float* sums, int64_t ld, int64_t m0, int64_t rows, int64_t n0,
                           int64_t cols, int64_t width);
StoreTile choose_store(const GemmOutput& out);

inline constexpr int64_t kRoomOfA = 448 << 10;  // bytes of A that a thread packs at once

// Microkernels that multiply packed panels into float32 tiles: one engine per instruction set; gemm() does blocking and
// threading. Packed A: panels of `mr` logical rows, packed B: panels of `nr` logical columns, both `ks` deep,
// zero-padded; the layout inside a panel is defined by the engine.
struct GemmEngine {
  int64_t mr, nr;
  int64_t depth;                        // the most that is packed at once
  bool integer_sums;                    // the tile holds int32
  int64_t (*packed_bytes)(int64_t ks);  // of one row of A, one column of B
  // Around a thread's calls of multiply; null: nothing to do.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
  // Rows [m0, m0 + rows) of the operand, depth [k0, k0 + ks).
  void (*pack_a)(const MatrixView& a, int64_t m0, int64_t rows, int64_t k0, int64_t ks, void* to);
  void (*pack_b)(const MatrixView& b, int64_t n0, int64_t cols, int64_t k0, int64_t ks, void* to);
  // Bytes from one row of A to the next where multiply reads A as it is stored, whole panels of it; 0: packed only.
  int64_t (*stored_row)(const MatrixView& a) = nullptr;
  // tile [rows rounded up to mr, ld] (+)= panels of A times panels of B, ld >= cols rounded up to nr. `a_row`: of
  // stored_row, 0 where A is packed.
  void (*multiply)(const void* a, int64_t a_row, int64_t rows, const void* b, int64_t cols, int64_t ks, float* tile,
                   int64_t ld, bool accumulate);
};

// Float32 in portable vector code: every type is converted while packing.
const GemmEngine& vector_engine();
// AMX bf16 products with float32 sums; null if the CPU, the OS or the build lacks it. Operands must be exact in
// bf16 (see load_run_bf16).
const GemmEngine* amx_engine();
// Float32 on AMX: operands in three parts of bf16, sums of six products, with an error of at most 2^-24 of
// each, as rounding a float32 product; what is below 2^-126 is lost, infinities give NaN. Null as above.
const GemmEngine* amx_float_engine();
// The faster one for any types: AMX's from so many rows on that splitting B is paid for. So a row's bits depend on the
// number of rows.
const GemmEngine& float_engine(int64_t rows);
// Int8 codes with int32 sums, exact for depth < kMaxIntegerDepth in any order of summation.
const GemmEngine& int8_engine();
inline constexpr int64_t kMaxIntegerDepth = int64_t{1} << 17;  // 128 * 128 * 2^17 = 2^31

// Scratch, some MiB, is divided among threads; fewer threads run if it is small.
void gemm(const GemmEngine& engine, const MatrixView& a, const MatrixView& b, const GemmOutput& out,
          std::span<std::byte> scratch);

// GEMMs with few rows, as in decoding: bound by reading b once. b is not packed; each element of the result is the dot
// product of two stored rows. The summation order of a row does not depend on the number of rows, so results do not
// depend on the batch.
//
// a [M, K] with M <= kGemvRows, b [N, K], both K-contiguous, without operand scales (GemmOutput's are applied).
// Needs gemv_scratch_bytes(M, K) of scratch.
inline constexpr int64_t kGemvRows = 8;
void gemv(const MatrixView& a, const MatrixView& b, const GemmOutput& out, std::span<std::byte> scratch);
int64_t gemv_scratch_bytes(int64_t rows, int64_t depth);
// Types: f32 | bf16 times bf16 with float32 sums, i8 times i8 with int32 sums (exact for depth < kMaxIntegerDepth).
bool gemv_takes(DType a, DType b);

}  // namespace octet::cpu
