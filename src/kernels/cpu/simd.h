// Vectors of floats for the CPU kernels: 16 lanes with AVX-512, 8 otherwise, as GCC vector types, so that +, -, *, /
// and comparisons are operators; intrinsics only where the compiler has none (fma, masks, roots).
//
// Full and Part give the number of lanes of a load or store: for_lanes runs a body over an array with Full and, at its
// end, with Part. Loads and stores of BF16 round to nearest even with the bits of base/codec.h. Functions are
// accurate to about 2 units in the last place unless said otherwise. No file here may depend on the lane count's value.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/dtype.h"

namespace octet::cpu::simd {

#ifdef __AVX512F__
inline constexpr int kLanes = 16;
#else
inline constexpr int kLanes = 8;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

#define OCTET_SIMD inline __attribute__((always_inline))

struct Full {};
struct Part {
  int64_t count;  // 0 < count < kLanes
};

// body(first, Full{}) over whole vectors, then body(first, Part{rest}).
template <typename Body>
OCTET_SIMD void for_lanes(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, Full{});
  if (i < count) body(i, Part{count - i});
}

// value - 0 is value, also for -0, and costs nothing (0 + value would be an addition).
OCTET_SIMD Floats broadcast(float value) { return value - Floats{}; }
OCTET_SIMD Ints as_ints(Floats v) { return std::bit_cast<Ints>(v); }
OCTET_SIMD Floats as_floats(Ints v) { return std::bit_cast<Floats>(v); }

OCTET_SIMD Floats load(const float* p, Full) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
OCTET_SIMD void store(float* p, Floats v, Full) { std::memcpy(p, &v, sizeof v); }

OCTET_SIMD Floats widen(Halves h) { return std::bit_cast<Floats>(__builtin_convertvector(h, Words) << 16); }
OCTET_SIMD Halves narrow(Floats v) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
  constexpr int kDenormal = 0x20;  // of which the instruction makes 0
  if (__builtin_expect(_mm512_fpclass_ps_mask((__m512)v, kDenormal) == 0, 1)) {
    return std::bit_cast<Halves>(_mm512_cvtneps_pbh((__m512)v));
  }
#endif
  Words bits = std::bit_cast<Words>(v);
  Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  Words nan = (bits >> 16) | 0x40u;
  return __builtin_convertvector(v == v ? rounded : nan, Halves);
}
OCTET_SIMD Floats load(const BF16* p, Full) {
  Halves h;
  std::memcpy(&h, p, sizeof h);
  return widen(h);
}
OCTET_SIMD void store(BF16* p, Floats v, Full) {
  Halves h = narrow(v);
  std::memcpy(p, &h, sizeof h);
}

// Lanes beyond the count read as 0 and are not written.
#ifdef __AVX512F__
OCTET_SIMD __mmask16 mask(Part part) { return static_cast<__mmask16>((1u << part.count) - 1); }
OCTET_SIMD Floats load(const float* p, Part part) { return (Floats)_mm512_maskz_loadu_ps(mask(part), p); }
OCTET_SIMD void store(float* p, Floats v, Part part) { _mm512_mask_storeu_ps(p, mask(part), (__m512)v); }
#else
OCTET_SIMD Floats load(const float* p, Part part) {
  Floats v{};
  std::memcpy(&v, p, static_cast<size_t>(part.count) * sizeof(float));
  return v;
}
OCTET_SIMD void store(float* p, Floats v, Part part) {
  std::memcpy(p, &v, static_cast<size_t>(part.count) * sizeof(float));
}
#endif

#if defined(__AVX512BW__) && defined(__AVX512VL__)
OCTET_SIMD Floats load(const BF16* p, Part part) { return widen((Halves)_mm256_maskz_loadu_epi16(mask(part), p)); }
OCTET_SIMD void store(BF16* p, Floats v, Part part) { _mm256_mask_storeu_epi16(p, mask(part), (__m256i)narrow(v)); }
#else
OCTET_SIMD Floats load(const BF16* p, Part part) {
  Halves h{};
  std::memcpy(&h, p, static_cast<size_t>(part.count) * sizeof(BF16));
  return widen(h);
}
OCTET_SIMD void store(BF16* p, Floats v, Part part) {
  Halves h = narrow(v);
  std::memcpy(p, &h, static_cast<size_t>(part.count) * sizeof(BF16));
}
#endif

// a * b + c, rounded once where the machine can.
OCTET_SIMD Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
OCTET_SIMD Floats fma(Floats a, float b, Floats c) { return fma(a, broadcast(b), c); }

// Lanes of `sum` plus the two products of each lane's int16 halves.
OCTET_SIMD Ints dot_pairs(Ints a, Ints b, Ints sum) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b) + sum;
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b) + sum;
#else
  return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16) + sum;
#endif
}

OCTET_SIMD Floats sqrt(Floats v) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_sqrt_ps(0xffff, (__m512)v);
#elif defined(__AVX__)
  return (Floats)_mm256_sqrt_ps((__m256)v);
#else
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

OCTET_SIMD Floats abs(Floats v) { return as_floats(as_ints(v) & 0x7fffffff); }
// The larger; a NaN on either side propagates.
OCTET_SIMD Floats maximum(Floats a, Floats b) { return (a > b) | (a != a) ? a : b; }
// Lanes {kIndex(0), kIndex(1), ...}: as a constant, which compilers often do not make of a loop.
template <auto kIndex>
OCTET_SIMD Ints constant_lanes() {
  return []<int... kLane>(std::integer_sequence<int, kLane...>) { return Ints{kIndex(kLane)...}; }
  (std::make_integer_sequence<int, kLanes>{});
}

// Lane i is lane kIndex(i) of a and, from kLanes on, of b.
template <auto kIndex, typename Vector>
OCTET_SIMD Vector shuffle(Vector a, Vector b) {
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) {
    return __builtin_shufflevector(a, b, kIndex(kLane)...);
  }
  (std::make_integer_sequence<int, kLanes>{});
}

// Lanes with index >= part.count are `other`.
OCTET_SIMD Floats keep(Floats v, Part part, Floats other) {
  const Ints lane = constant_lanes<[](int i) { return i; }>();
  return lane < static_cast<int32_t>(part.count) ? v : other;
}
OCTET_SIMD Floats keep(Floats v, Full, Floats) { return v; }

// The larger and the smaller in one instruction: b when either is NaN.
OCTET_SIMD Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
OCTET_SIMD Floats smaller(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

// Lane sums and maxima in one fixed order, a tree of halves.
template <int kWidth = kLanes / 2, typename Vector, typename Join>
OCTET_SIMD auto across(Vector v, const Join& join) {
  if constexpr (kWidth == 0) {
    return v[0];
  } else {
    return across<kWidth / 2>(join(v, shuffle<[](int lane) { return lane ^ kWidth; }>(v, v)), join);
  }
}
OCTET_SIMD float sum(Floats v) {
  return across(v, [](Floats a, Floats b) { return a + b; });
}
OCTET_SIMD int32_t sum(Ints v) {  // exact in any order
  return across(v, [](Ints a, Ints b) { return a + b; });
}
OCTET_SIMD float largest(Floats v) {  // NaN propagates
  return across(v, [](Floats a, Floats b) { return maximum(a, b); });
}

// Exchanges rows and lanes in log2(kLanes) rounds of pairwise exchanges.
template <int kWidth = 1>
OCTET_SIMD void transpose(Floats (&row)[kLanes]) {
  constexpr int w = kWidth;
  for (int r = 0; r < kLanes; ++r) {
    if (r & kWidth) continue;
    const Floats a = row[r], b = row[r + kWidth];
    row[r] = shuffle<[](int i) { return (i & w) ? kLanes + i - w : i; }>(a, b);
    row[r + kWidth] = shuffle<[](int i) { return (i & w) ? kLanes + i : i + w; }>(a, b);
  }
  if constexpr (2 * kWidth < kLanes) transpose<2 * kWidth>(row);
}

// e^x: x = n ln2 + r, a polynomial in r (fitted, relative error 9e-9 before rounding), times 2^n. Overflows to
// infinity, underflows gradually, NaN propagates.
OCTET_SIMD Floats exp(Floats x) {
  constexpr float kMagic = 0x1.8p23f;  // adding it rounds to an integer, kept in the low bits
  x = larger(broadcast(-104.0f), smaller(broadcast(89.0f), x));
  Floats shifted = fma(x, 0x1.715476p0f, broadcast(kMagic));
  Floats n = shifted - kMagic;
  Floats r = fma(n, -0x1.62e4p-1f, x);
  r = fma(n, -0x1.7f7d1cp-20f, r);
  Floats p = broadcast(0x1.6d1606p-10f);
  p = fma(p, r, broadcast(0x1.12106cp-7f));
  p = fma(p, r, broadcast(0x1.555516p-5f));
  p = fma(p, r, broadcast(0x1.5554d8p-3f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p * r, r, r) + 1.0f;
#ifdef __AVX512F__
  return (Floats)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)n);
#else
  Ints whole = as_ints(shifted) - std::bit_cast<int32_t>(kMagic), half = whole >> 1;
  return p * as_floats((half + 127) << 23) * as_floats((whole - half + 127) << 23);
#endif
}

OCTET_SIMD Floats sigmoid(Floats x) { return 1.0f / (1.0f + exp(-x)); }

// erfc(x): (1 + 2a) e^(a^2) erfc(a) of a = |x| is a polynomial in (a - 3) / (a + 3) (the transformation of Shepherd and
// Laframboise, Math. Comp. 36, 1981; coefficients fitted on [0, 10.2], absolute error 4e-9).
OCTET_SIMD Floats erfc(Floats x) {
  Floats a = abs(x);
  a = a > 10.2f ? broadcast(10.2f) : a;
  Floats q = (a - 3.0f) / (a + 3.0f);
  Floats p = broadcast(-0x1.21d0f2p-12f);
  p = fma(p, q, broadcast(-0x1.a133a8p-11f));
  p = fma(p, q, broadcast(0x1.05ab42p-9f));
  p = fma(p, q, broadcast(0x1.5203b0p-9f));
  p = fma(p, q, broadcast(-0x1.85cc26p-6f));
  p = fma(p, q, broadcast(0x1.17bacap-4f));
  p = fma(p, q, broadcast(-0x1.e88a42p-4f));
  p = fma(p, q, broadcast(0x1.09842ap-3f));
  p = fma(p, q, broadcast(-0x1.85a15ap-5f));
  p = fma(p, q, broadcast(-0x1.15c08ap-3f));
  p = fma(p, q, broadcast(0x1.03148cp-2f));
  Floats square = a * a, rest = fma(-a, a, square);  // e^(-a^2) with the square's rounding error put back
  Floats tail = (p + 1.0f) / fma(a, 2.0f, broadcast(1.0f)) * exp(-square);
  tail = fma(tail, rest, tail);
  return x < 0.0f ? 2.0f - tail : tail;
}

}  // namespace octet::cpu::simd
