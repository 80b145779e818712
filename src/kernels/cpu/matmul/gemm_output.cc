// The epilogue of our own GEMMs, one instance per type of result and addend.
#include "kernels/cpu/matmul/gemm_output.h"

#include <algorithm>
#include <type_traits>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "base/codec.h"
#include "base/error.h"

namespace octet::cpu {
namespace {

struct NoAddend {};

// bf16 by the CPU's conversion instruction if available (results below 1.2e-38 become 0, as AMX's operands do).
template <typename Out>
void round_run(const float* values, Out* out, int64_t count) {
  int64_t i = 0;
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<Out, BF16>) {
    for (; i + 32 <= count; i += 32) {
      const __m512bh pair = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(values + i + 16), _mm512_loadu_ps(values + i));
      _mm512_storeu_si512(out + i, (__m512i)pair);
    }
  }
#endif
  for (; i < count; ++i) out[i] = codec::encode<Out>(values[i]);
}

// One row of the epilogue in runs that fit the L1 cache.
template <bool kScaled, typename Add, typename Out>
void store_row(const float* sums, float factor, const float* col_scale, const Add* c, Out* out, int64_t count) {
  constexpr int64_t kRun = 256;
  alignas(64) float run[kRun];
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t length = std::min(kRun, count - begin);
    for (int64_t i = 0; i < length; ++i) {
      float value = sums[begin + i] * factor;
      if constexpr (kScaled) value *= col_scale[begin + i];
      if constexpr (!std::is_same_v<Add, NoAddend>) value += codec::decode(c[begin + i]);
      run[i] = value;
    }
    round_run(run, out + begin, length);
  }
}

template <typename Visit>
void with_output_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kF32: return visit(float{});
    case DType::kBF16: return visit(BF16{});
    case DType::kF16: return visit(F16{});
    default: fail(ErrorCode::kInternal, "gemm: result or addend of type {}", dtype_name(dtype));
  }
}

// Rows [m0, m0 + rows) and columns [n0, n0 + cols) of the result, `width` columns wide.
template <typename Add, typename Out>
void store_tile(const GemmOutput& out, const float* tile, int64_t ld, int64_t m0, int64_t rows, int64_t n0,
                int64_t cols, int64_t width) {
  for (int64_t m = m0; m < m0 + rows; ++m, tile += ld) {
    const float factor = out.row_scale != nullptr ? out.factor * out.row_scale[m] : out.factor;
    const int64_t at = m * width + n0;
    const auto* c = static_cast<const Add*>(out.c) + (out.c == nullptr ? 0 : out.c_broadcast ? n0 : at);
    Out* to = static_cast<Out*>(out.data) + at;
    if (out.col_scale != nullptr) {
      store_row<true>(tile, factor, out.col_scale + n0, c, to, cols);
    } else {
      store_row<false>(tile, factor, nullptr, c, to, cols);
    }
  }
}

}  // namespace

StoreTile choose_store(const GemmOutput& out) {
  StoreTile store = nullptr;
  with_output_type(out.dtype, [&](auto to) {
    if (out.c == nullptr) {
      store = store_tile<NoAddend, decltype(to)>;
      return;
    }
    with_output_type(out.c_dtype, [&](auto c) { store = store_tile<decltype(c), decltype(to)>; });
  });
  return store;
}

}  // namespace octet::cpu
