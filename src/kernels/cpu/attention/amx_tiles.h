// Products of bf16 blocks of attention on the AMX tile unit with float32 sums, and the packing of their operands.
//
// A left operand is stored in rows, a right operand in pairs. All extents are padded with zeros to multiples of kStep.
// Float32 operands (probabilities, dS) are split into two bf16 parts, which keep 17 bits of the mantissa.
#pragma once

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention/tiles.h"

#ifdef OCTET_AMX

namespace octet::cpu::amx {

using simd::Floats;
using simd::Words;

inline constexpr int64_t kBlock = 64;  // queries and keys of a block

struct Term {
  const uint16_t* a;  // [rows][depth]
  const uint32_t* b;  // [depth / 2][cols] pairs
};

// c[rows x cols] = or += sum over the terms of a b.
template <size_t kTerms>
__attribute__((noinline)) void product(int64_t rows, int64_t cols, int64_t depth, const Term (&terms)[kTerms],
                                       int64_t a_row, int64_t b_row, float* c, int64_t c_row, bool accumulate) {
  asm volatile("" ::: "memory");  // the tile intrinsics do not declare the memory they read
  for (int64_t i = 0; i < rows; i += kStep) {
    for (int64_t j = 0; j < cols; j += kStep) {
      load_block(c + i * c_row + j, c_row, accumulate);
      for (const Term& term : terms) {
        multiply_block({term.a + i * a_row, a_row * 2, a_row * 32, 64}, {term.b + j, b_row * 4, 64, b_row * 64}, depth);
      }
      store_block(c + i * c_row + j, c_row);
    }
  }
  asm volatile("" ::: "memory");
}

using Rows = tiles::Rows<BF16>;

// Elements [c, c + 32) of row r, zeros outside.
inline __m512i load(const Rows& from, int64_t r, int64_t c) {
  if (r >= from.count || c >= from.dim) return _mm512_setzero_si512();
  const BF16* at = from.data + r * from.row + c;
  if (c + 32 <= from.dim) return _mm512_loadu_si512(at);
  return _mm512_maskz_loadu_epi16((__mmask32{1} << (from.dim - c)) - 1, at);
}
// Elements [c, c + 16) of rows r and r + 1 as pairs.
inline __m512i load_pairs(const Rows& from, int64_t r, int64_t c) {
  const auto half = [&](int64_t row) {
    if (row >= from.count || c >= from.dim) return _mm512_setzero_si512();
    const auto lanes = static_cast<__mmask16>(c + 16 <= from.dim ? 0xffff : (1u << (from.dim - c)) - 1);
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from.data + row * from.row + c));
  };
  return _mm512_or_si512(half(r), _mm512_slli_epi32(half(r + 1), 16));
}

// to[count][width]: a left operand whose depth is dim.
inline void pack_rows(const Rows& from, int64_t width, uint16_t* to) {
  for (int64_t r = 0; r < round_up_step(from.count); ++r) {
    for (int64_t c = 0; c < width; c += 32) _mm512_storeu_si512(to + r * width + c, load(from, r, c));
  }
}

// to[count / 2][width]: a right operand whose depth is count.
inline void pack_pairs(const Rows& from, int64_t width, uint32_t* to) {
  for (int64_t r = 0; r < round_up_step(from.count); r += 2) {
    for (int64_t c = 0; c < width; c += 16) _mm512_storeu_si512(to + r / 2 * width + c, load_pairs(from, r, c));
  }
}

// to[width / 2][kBlock]: the transpose as a right operand, whose depth is dim.
inline void pack_transposed_pairs(const Rows& from, int64_t width, uint32_t* to) {
  for (int64_t r = 0; r < round_up_step(from.count); r += 16) {
    for (int64_t c = 0; c < width; c += 32) {
      Floats block[16];
      for (int i = 0; i < 16; ++i) block[i] = std::bit_cast<Floats>(load(from, r + i, c));
      simd::transpose(block);
      for (int i = 0; i < 16; ++i) std::memcpy(to + (c / 2 + i) * kBlock + r, &block[i], sizeof block[i]);
    }
  }
}

// to[width][kBlock]: the transpose as a left operand, whose depth is count.
inline void pack_transposed_rows(const Rows& from, int64_t width, uint16_t* to) {
  for (int64_t r = 0; r < from.count; r += 32) {
    for (int64_t c = 0; c < width; c += 16) {
      Floats block[16];
      for (int i = 0; i < 16; ++i) block[i] = std::bit_cast<Floats>(load_pairs(from, r + 2 * i, c));
      simd::transpose(block);
      for (int i = 0; i < 16; ++i) std::memcpy(to + (c + i) * kBlock + r, &block[i], sizeof block[i]);
    }
  }
}

// value = high + low to a relative 2^-17; both are bf16 in the upper half of their word.
struct Split {
  Words high, low;
};
OCTET_SIMD Split split(Floats value) {
  const Words high = nearest(value);
  return {high, std::bit_cast<Words>(value - std::bit_cast<Floats>(high)) + 0x8000u};
}
OCTET_SIMD void store_upper_halves(uint16_t* to, Words words) {
  const simd::Halves halves = __builtin_convertvector(words >> 16, simd::Halves);
  std::memcpy(to, &halves, sizeof halves);
}
OCTET_SIMD void store_pairs(uint32_t* to, Words even, Words odd) {
  const Words words = pairs(even, odd);
  std::memcpy(to, &words, sizeof words);
}

}  // namespace octet::cpu::amx
#endif
