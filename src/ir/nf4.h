// NF4 as bitsandbytes has it, of op dequantize_nf4: codes of 4 bits that index quantiles of the normal distribution,
// in blocks of 64 neighbours that share a magnitude; a magnitude is a code of 8 bits by a scale, plus an offset (double
// quantization). Source: Dettmers et al., QLoRA (arXiv 2305.14314), sections 3 and 4, appendix E.
#pragma once

#include <array>
#include <cstdint>

#include "base/shape.h"

namespace octet {

inline constexpr int64_t kNf4Block = 64;    // values that share a magnitude
inline constexpr int64_t kNf4Nested = 256;  // magnitudes that share a scale, in bitsandbytes

// Of index 0 to 15: that of an i4 code plus 8.
inline constexpr std::array<float, 16> kNf4Values = {-1.0F,
                                                     -0.6961928009986877F,
                                                     -0.5250730514526367F,
                                                     -0.39491748809814453F,
                                                     -0.28444138169288635F,
                                                     -0.18477343022823334F,
                                                     -0.09105003625154495F,
                                                     0.0F,
                                                     0.07958029955625534F,
                                                     0.16093020141124725F,
                                                     0.24611230194568634F,
                                                     0.33791524171829224F,
                                                     0.44070982933044434F,
                                                     0.5626170039176941F,
                                                     0.7229568362236023F,
                                                     1.0F};

// Of index 0 to 255, that of an i8 code plus 128: seven decades, each with twice as many values as the one below, and
// their negatives; ascending. Source: Dettmers, 8-bit Approximations (arXiv 1511.04561), section 2.
const std::array<float, 256>& nf4_magnitude_values();

// Shapes beside the codes [N, K]. Rows of whole blocks: magnitudes [N, K / 64], scales [N, K / 64 / group], offsets
// [N]. Others are one sequence of blocks that go across rows: [1, blocks], [1, ceil(blocks / group)], [1].
struct Nf4Shapes {
  Shape magnitudes, scales, offsets;
};
Nf4Shapes nf4_shapes(const Shape& codes, int64_t group);
inline bool has_whole_nf4_blocks(const Shape& codes) { return codes[1] % kNf4Block == 0; }
// The magnitudes of a scale: at most `wanted`, and of whole blocks of rows a divisor of those of each of `parts` of a
// row.
int64_t nf4_group(const Shape& codes, int64_t wanted, int64_t parts = 1);

}  // namespace octet
