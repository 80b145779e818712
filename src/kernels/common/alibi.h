// Attention with linear biases: a score is lowered in proportion to the distance of key and query, by a slope of its
// head. Source: Press et al. 2022, arXiv 2108.12409, and its released code for counts of heads that are no power of
// two.
#pragma once

#include <cmath>
#include <cstdint>

namespace octet {

// The slope of `head` of `heads` is 2^-exponent. A power of two n of heads: max_exponent (head + 1) / n. Other counts:
// the slopes of the power of two below, then the first, third, ... of its double. Plain arithmetic: kernels call it
// too.
constexpr double alibi_exponent(int64_t head, int64_t heads, double max_exponent) {
  int64_t whole = 1;
  while (2 * whole <= heads) whole *= 2;
  const int64_t step = head < whole ? 2 * (head + 1) : 2 * (head - whole) + 1;
  return max_exponent * static_cast<double>(step) / static_cast<double>(2 * whole);
}

inline double alibi_slope(int64_t head, int64_t heads, double max_exponent) {
  return std::exp2(-alibi_exponent(head, heads, max_exponent));
}

}  // namespace octet
