// Runs of operand elements as float32 or bf16. FP8 codes become bf16 through tables of 128 magnitudes in vector
// registers with AVX-512 VBMI, else through the codecs.
#include "kernels/cpu/matmul/matrix_view.h"

#include <algorithm>
#include <cstring>

#include "base/codec.h"
#include "base/error.h"
#if defined(__AVX512BW__) && defined(__AVX512VBMI__)
#include <immintrin.h>
#endif

namespace octet::cpu {
namespace {

const std::byte* element(const MatrixView& view, int64_t r, int64_t c) {
  return static_cast<const std::byte*>(view.data) + (r * view.cols + c) * dtype_bytes(view.dtype);
}

// Calls body(begin, end, scale) for each part of [c, c + count) with one scale.
template <typename Body>
void for_each_scale(const MatrixView& view, int64_t r, int64_t c, int64_t count, const Body& body) {
  for (int64_t begin = c; begin < c + count;) {
    const int64_t end = std::min(c + count, (begin / view.scale_cols + 1) * view.scale_cols);
    body(begin - c, end - c, view.scale(r, begin));
    begin = end;
  }
}

uint16_t upper_half(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

#if defined(__AVX512BW__) && defined(__AVX512VBMI__)
// The upper and lower bytes of the bf16 values of a format's 128 non-negative codes: two registers each.
struct MagnitudeBytes {
  alignas(64) uint8_t upper[128], lower[128];
};

template <typename Code>
MagnitudeBytes make_magnitudes() {
  MagnitudeBytes bytes;
  for (size_t i = 0; i < 128; ++i) {
    const uint16_t value = upper_half(codec::decode(Code{static_cast<uint8_t>(i)}));
    bytes.upper[i] = static_cast<uint8_t>(value >> 8), bytes.lower[i] = static_cast<uint8_t>(value);
  }
  return bytes;
}

template <typename Code>
const MagnitudeBytes kMagnitudes = make_magnitudes<Code>();

template <typename Code>
void decode_bf16(const uint8_t* from, uint16_t* to, int64_t count) {
  const MagnitudeBytes& bytes = kMagnitudes<Code>;
  const __m512i upper0 = _mm512_load_si512(bytes.upper), upper1 = _mm512_load_si512(bytes.upper + 64);
  const __m512i lower0 = _mm512_load_si512(bytes.lower), lower1 = _mm512_load_si512(bytes.lower + 64);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  // Interleaving works within 128-bit lanes: quarters are permuted first so that both results are in order.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t left = count - i;
    const auto mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    const __m512i code = _mm512_permutexvar_epi64(order, _mm512_maskz_loadu_epi8(mask, from + i));
    const __m512i lower = _mm512_permutex2var_epi8(lower0, code, lower1);
    const __m512i magnitude = _mm512_permutex2var_epi8(upper0, code, upper1);
    const __m512i upper = _mm512_ternarylogic_epi64(magnitude, code, sign, 0xf8);  // magnitude | (code & sign)
    const __m512i first = _mm512_unpacklo_epi8(lower, upper), second = _mm512_unpackhi_epi8(lower, upper);
    if (left >= 64) {
      _mm512_storeu_si512(to + i, first);
      _mm512_storeu_si512(to + i + 32, second);
    } else {
      _mm512_mask_storeu_epi16(to + i, static_cast<__mmask32>(mask), first);
      _mm512_mask_storeu_epi16(to + i + 32, static_cast<__mmask32>(mask >> 32), second);
    }
  }
}

void scale_bf16(uint16_t* values, int64_t count, float scale) {
  const __m512 factor = _mm512_set1_ps(scale);
  for (int64_t i = 0; i < count; i += 16) {
    const auto mask = static_cast<__mmask16>(count - i >= 16 ? 0xffff : (1 << (count - i)) - 1);
    const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, values + i)), 16);
    const __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(wide), factor);
    _mm256_mask_storeu_epi16(values + i, mask,
                             _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(scaled), 16)));
  }
}
#else
template <typename Code>
void decode_bf16(const uint8_t* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = upper_half(codec::decode(Code{from[i]}));
}

void scale_bf16(uint16_t* values, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i) values[i] = upper_half(codec::decode_bf16(values[i]) * scale);
}
#endif

}  // namespace

void load_run(const MatrixView& view, int64_t r, int64_t c, int64_t count, float* to) {
  convert(view.dtype, element(view, r, c), DType::kF32, to, count);
  if (view.scales == nullptr) return;
  for_each_scale(view, r, c, count, [&](int64_t begin, int64_t end, float scale) {
    for (int64_t i = begin; i < end; ++i) to[i] *= scale;
  });
}

void load_run_bf16(const MatrixView& view, int64_t r, int64_t c, int64_t count, uint16_t* to) {
  const auto* codes = reinterpret_cast<const uint8_t*>(element(view, r, c));
  switch (view.dtype) {
    case DType::kBF16: std::memcpy(to, codes, static_cast<size_t>(count) * 2); break;
    case DType::kE4M3: decode_bf16<E4M3>(codes, to, count); break;
    case DType::kE5M2: decode_bf16<E5M2>(codes, to, count); break;
    default: fail(ErrorCode::kInternal, "load_run_bf16: {} is not exact in bf16", dtype_name(view.dtype));
  }
  if (view.scales == nullptr) return;
  for_each_scale(view, r, c, count,
                 [&](int64_t begin, int64_t end, float scale) { scale_bf16(to + begin, end - begin, scale); });
}

}  // namespace octet::cpu
