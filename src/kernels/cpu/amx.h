// Blocks of 32 x 32 float32 sums of bf16 products in the AMX tile registers. Call amx_engine() (matmul/gemm.h), which
// asks for the registers, before the first use. AMX flushes denormal operands to zero; bf16 denormals are
// below 1.2e-38.
#pragma once

#include "kernels/cpu/simd.h"

#if defined(__AMX_BF16__) && defined(__AVX512BW__)
#define OCTET_AMX 1

namespace octet::cpu::amx {

inline constexpr int64_t kStep = 32;  // rows and columns of a block, depth of a tile product

inline int64_t round_up_step(int64_t count) { return (count + kStep - 1) / kStep * kStep; }

// Configures the tile registers of this thread, which takes some 1,200 cycles with their release.
inline void begin_tiles() {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static constexpr Config config;
  _tile_loadconfig(&config);
}
inline void end_tiles() { _tile_release(); }

class Tiles {
 public:
  Tiles() { begin_tiles(); }
  ~Tiles() { end_tiles(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// An operand of a block: two tiles of 16 rows of 64 bytes each, and those of the next kStep of depth. A left one holds
// rows of 32 along the depth; a right one rows of 16 pairs: one 32-bit word is depth 2 p and 2 p + 1 of a column.
struct Operand {
  const void* data;
  int64_t row, second, next;  // bytes to the next row of a tile, to the second tile, to the next of depth
};

// Sums of a block at c, whose rows are `row` floats apart, to the registers (or zeros), and back.
inline void load_block(const float* c, int64_t row, bool accumulate) {
  if (accumulate) {
    _tile_loadd(0, c, row * 4);
    _tile_loadd(1, c + 16, row * 4);
    _tile_loadd(2, c + 16 * row, row * 4);
    _tile_loadd(3, c + 16 * row + 16, row * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}
inline void store_block(float* c, int64_t row) {
  _tile_stored(0, c, row * 4);
  _tile_stored(1, c + 16, row * 4);
  _tile_stored(2, c + 16 * row, row * 4);
  _tile_stored(3, c + 16 * row + 16, row * 4);
}

// The nearest bf16 of each value, in the upper half of its word.
OCTET_SIMD simd::Words nearest(simd::Floats value) {
  return (std::bit_cast<simd::Words>(value) + 0x8000u) & 0xffff0000u;
}
// Words of two bf16, given in upper halves.
OCTET_SIMD simd::Words pairs(simd::Words even, simd::Words odd) { return (even >> 16) | (odd & 0xffff0000u); }

// Adds a b to the block in the registers.
inline void multiply_block(const Operand& a, const Operand& b, int64_t depth) {
  const auto *left = static_cast<const std::byte*>(a.data), *right = static_cast<const std::byte*>(b.data);
  for (int64_t k = 0; k < depth; k += kStep, left += a.next, right += b.next) {
    _tile_loadd(4, left, a.row);
    _tile_loadd(6, right, b.row);
    _tile_loadd(7, right + b.second, b.row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + a.second, a.row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

}  // namespace octet::cpu::amx
#endif
