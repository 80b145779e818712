// Dropout's comparison of a random word with its probability, the same integer on every device.
#pragma once

#include <cmath>
#include <cstdint>

namespace octet {

// keep = uniform_from_bits(word) >= p, as (word >> 8) >= threshold: exact, both sides are multiples of 2^-24.
inline uint32_t keep_threshold(double p) { return static_cast<uint32_t>(std::ceil(p * 0x1p24)); }

}  // namespace octet
