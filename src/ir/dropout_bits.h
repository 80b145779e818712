// The random numbers of dropout: a word of Philox an element (bits = 32), or a byte, sixteen elements a draw (bits =
// 8).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace octet {

// Of 8 bits: an element is kept when its byte is not below it, and then multiplied by 256 / (256 - threshold).
inline int64_t byte_threshold(double p) { return std::llround(256 * p); }

// What is wrong with these bits for dropout of p; empty: nothing.
std::string dropout_bits_fault(double p, int64_t bits);

}  // namespace octet
