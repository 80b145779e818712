// amax, and its scale as the kernels compute it: the recipe's formula with the common case inline. amax travels as the
// bits of |x|, whose integer order puts NaN above infinity above every number, whatever the order of elements.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cfloat>

#include "base/codec.h"
#include "base/threads.h"
#include "ir/graph.h"
#include "precision/recipe.h"

namespace octet::cpu {

struct ScaleFormula {
  DType format = DType::kE4M3;
  int64_t margin = 0;
  bool pow2 = false;
  float max = 448;

  explicit ScaleFormula(const Node& node)
      : format(parse_dtype(node.attr<std::string>("format"))),
        margin(node.attr<int64_t>("margin")),
        pow2(node.attr<bool>("pow2")),
        max(static_cast<float>(dtype_max(format))) {}

  float operator()(uint32_t amax_bits) const {
    const float amax = std::bit_cast<float>(amax_bits), scale = max / amax;
    if (margin != 0 || !(scale >= FLT_MIN && scale <= FLT_MAX)) return scale_from_amax(amax, format, margin, pow2);
    return pow2 ? std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0x7f800000u) : scale;
  }
};

template <typename T>
uint32_t magnitude_bits(T value) {
  return std::bit_cast<uint32_t>(codec::decode(value)) & 0x7fffffffu;
}

template <typename T>
uint32_t amax_run(const T* x, int64_t count) {
  uint32_t amax = 0;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, magnitude_bits(x[i]));
  return amax;
}

template <typename T>
void amax_columns(const T* x, int64_t count, uint32_t* amax) {
  for (int64_t i = 0; i < count; ++i) amax[i] = std::max(amax[i], magnitude_bits(x[i]));
}

// The largest of piece(begin, end) over disjoint ranges that cover [0, count).
template <typename Piece>
uint32_t parallel_max(int64_t count, int64_t grain, const Piece& piece) {
  std::atomic<uint32_t> largest{0};
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    const uint32_t value = piece(begin, end);
    uint32_t seen = largest.load(std::memory_order_relaxed);
    while (seen < value && !largest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  });
  return largest;
}

}  // namespace octet::cpu
