// Products of bf16 blocks on the AMX tile unit with float32 sums, and the packing of their operands.
//
// A left operand is stored in rows, a right operand in pairs: one 32-bit word holds depth 2 p and 2 p + 1 of a column.
// All extents are padded with zeros to multiples of kStep. Float32 operands (probabilities, dS) are split into two bf16
// parts, which keep 17 bits of the mantissa. Call amx_engine() before the first use.
#pragma once

#include "kernels/cpu/attention/tiles.h"

#if defined(__AMX_BF16__) && defined(__AVX512BW__)
#define OCTET_AMX_ATTENTION 1

namespace octet::cpu::amx {

using simd::Floats;
using simd::Words;

inline constexpr int64_t kStep = 32;   // rows and columns of a register block, depth of a tile product
inline constexpr int64_t kBlock = 64;  // queries and keys of a block

inline int64_t round_up_step(int64_t count) { return (count + kStep - 1) / kStep * kStep; }

// Configures the tile registers of this thread during its lifetime.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static constexpr Config config;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

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
      float* to = c + i * c_row + j;
      if (accumulate) {
        _tile_loadd(0, to, c_row * 4);
        _tile_loadd(1, to + 16, c_row * 4);
        _tile_loadd(2, to + 16 * c_row, c_row * 4);
        _tile_loadd(3, to + 16 * c_row + 16, c_row * 4);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (const Term& term : terms) {
        const uint16_t* a = term.a + i * a_row;
        const uint32_t* b = term.b + j;
        for (int64_t k = 0; k < depth; k += kStep, a += kStep, b += kStep / 2 * b_row) {
          _tile_loadd(4, a, a_row * 2);
          _tile_loadd(6, b, b_row * 4);
          _tile_loadd(7, b + 16, b_row * 4);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
          _tile_loadd(5, a + 16 * a_row, a_row * 2);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, to, c_row * 4);
      _tile_stored(1, to + 16, c_row * 4);
      _tile_stored(2, to + 16 * c_row, c_row * 4);
      _tile_stored(3, to + 16 * c_row + 16, c_row * 4);
    }
  }
  asm volatile("" ::: "memory");
}

// Rows of bf16 in memory: [count][dim], `row` elements apart.
struct Rows {
  const BF16* data;
  int64_t row, count, dim;
  // Elements [c, c + 32) of row r, zeros outside.
  __m512i load(int64_t r, int64_t c) const {
    if (r >= count || c >= dim) return _mm512_setzero_si512();
    const BF16* from = data + r * row + c;
    if (c + 32 <= dim) return _mm512_loadu_si512(from);
    return _mm512_maskz_loadu_epi16((__mmask32{1} << (dim - c)) - 1, from);
  }
  // Elements [c, c + 16) of rows r and r + 1 as pairs.
  __m512i load_pairs(int64_t r, int64_t c) const {
    const auto half = [&](int64_t at) {
      if (at >= count || c >= dim) return _mm512_setzero_si512();
      const BF16* from = data + at * row + c;
      const auto lanes = static_cast<__mmask16>(c + 16 <= dim ? 0xffff : (1u << (dim - c)) - 1);
      return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
    };
    return _mm512_or_si512(half(r), _mm512_slli_epi32(half(r + 1), 16));
  }
};

// to[count][width]: a left operand whose depth is dim.
inline void pack_rows(const Rows& from, int64_t width, uint16_t* to) {
  for (int64_t r = 0; r < round_up_step(from.count); ++r) {
    for (int64_t c = 0; c < width; c += 32) _mm512_storeu_si512(to + r * width + c, from.load(r, c));
  }
}

// to[count / 2][width]: a right operand whose depth is count.
inline void pack_pairs(const Rows& from, int64_t width, uint32_t* to) {
  for (int64_t r = 0; r < round_up_step(from.count); r += 2) {
    for (int64_t c = 0; c < width; c += 16) _mm512_storeu_si512(to + r / 2 * width + c, from.load_pairs(r, c));
  }
}

// to[width / 2][kBlock]: the transpose as a right operand, whose depth is dim.
inline void pack_transposed_pairs(const Rows& from, int64_t width, uint32_t* to) {
  for (int64_t r = 0; r < round_up_step(from.count); r += 16) {
    for (int64_t c = 0; c < width; c += 32) {
      Floats block[16];
      for (int i = 0; i < 16; ++i) block[i] = std::bit_cast<Floats>(from.load(r + i, c));
      tiles::transpose(block);
      for (int i = 0; i < 16; ++i) std::memcpy(to + (c / 2 + i) * kBlock + r, &block[i], sizeof block[i]);
    }
  }
}

// to[width][kBlock]: the transpose as a left operand, whose depth is count.
inline void pack_transposed_rows(const Rows& from, int64_t width, uint16_t* to) {
  for (int64_t r = 0; r < from.count; r += 32) {
    for (int64_t c = 0; c < width; c += 16) {
      Floats block[16];
      for (int i = 0; i < 16; ++i) block[i] = std::bit_cast<Floats>(from.load_pairs(r + 2 * i, c));
      tiles::transpose(block);
      for (int i = 0; i < 16; ++i) std::memcpy(to + (c + i) * kBlock + r, &block[i], sizeof block[i]);
    }
  }
}

// value = high + low to a relative 2^-17; both are bf16 in the upper half of their word.
struct Split {
  Words high, low;
};
OCTET_SIMD Split split(Floats value) {
  const Words high = (std::bit_cast<Words>(value) + 0x8000u) & 0xffff0000u;
  return {high, std::bit_cast<Words>(value - std::bit_cast<Floats>(high)) + 0x8000u};
}
OCTET_SIMD void store_upper_halves(uint16_t* to, Words words) {
  const simd::Halves halves = __builtin_convertvector(words >> 16, simd::Halves);
  std::memcpy(to, &halves, sizeof halves);
}
OCTET_SIMD void store_pairs(uint32_t* to, Words even, Words odd) {
  const Words pairs = (even >> 16) | (odd & 0xffff0000u);
  std::memcpy(to, &pairs, sizeof pairs);
}

}  // namespace octet::cpu::amx
#endif
