// Which elements dropout keeps, and by what random numbers: the same integers on every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "ir/dropout_bits.h"
#include "ir/graph.h"
#include "kernels/common/keep_byte.h"

namespace octet {

// An element is kept when its random number is not below the threshold: the upper 24 bits of its word (so that
// uniform_from_bits(word) >= p: exact, both are multiples of 2^-24), or its byte.
inline uint32_t keep_threshold(double p) { return static_cast<uint32_t>(std::ceil(p * 0x1p24)); }
struct KeepRule {
  bool bytes = false;
  uint32_t threshold = 0;
  double factor = 1;  // of kept elements

  KeepRule() = default;
  // p: the attribute of `node` that holds the probability.
  KeepRule(const Node& node, double p) : bytes(node.attr<int64_t>("bits") == 8) {
    threshold = bytes ? static_cast<uint32_t>(byte_threshold(p)) : keep_threshold(p);
    factor = bytes ? 256.0 / (256 - threshold) : 1 / (1 - p);
  }
};

}  // namespace octet
