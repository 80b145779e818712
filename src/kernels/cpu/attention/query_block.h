// One block of queries of one head against the keys it sees, block by block, with an online softmax: scores live in a
// tile, and the running maximum, sum and output row are rescaled as the maximum grows. Shared by attention and
// paged_attention, which differ in where keys and values lie.
#pragma once

#include <cmath>

#include "kernels/cpu/attention/tiles.h"

namespace octet::cpu {

inline constexpr int64_t kAttentionBlock = 64;  // queries and keys of a tile

// Lanes first, first + 1, ...
OCTET_SIMD simd::Ints lane_indices(int64_t first) {
  simd::Ints index{};
  for (int i = 0; i < simd::kLanes; ++i) index[i] = i;
  return index + static_cast<int32_t>(first);
}

struct SoftmaxRow {
  float maximum = -INFINITY, sum = 0;

  // Scores of one row become probabilities of keys [low, high) relative to the running maximum, zero in the rest of
  // `width` (whole vectors). Returns the factor for what was summed before.
  float add(float* scores, int64_t low, int64_t high, int64_t width, float scale) {
    using simd::Floats;
    const Floats lowest = simd::broadcast(-INFINITY);
    Floats top = lowest;
    if (low == 0 && high == width) {
      for (int64_t c = 0; c < width; c += simd::kLanes) top = simd::larger(simd::load(scores + c, simd::Full{}), top);
    } else {
      for (int64_t c = 0; c < width; c += simd::kLanes) {
        const simd::Ints index = lane_indices(c);
        const Floats score = simd::load(scores + c, simd::Full{});
        const auto seen = (index >= static_cast<int32_t>(low)) & (index < static_cast<int32_t>(high));
        const Floats visible = seen ? score : lowest;
        simd::store(scores + c, visible, simd::Full{});
        top = simd::larger(visible, top);
      }
    }
    // A NaN is passed over here and comes back through the exponential. (scale > 0: it keeps the order)
    const float before = maximum, now = std::max(before, simd::largest(top) * scale);
    if (now == -INFINITY) {  // nothing seen so far
      std::fill_n(scores, width, 0.0f);
      return 1;
    }
    Floats total{};
    for (int64_t c = 0; c < width; c += simd::kLanes) {
      Floats probability = simd::exp(simd::fma(simd::load(scores + c, simd::Full{}), scale, simd::broadcast(-now)));
      probability = probability < 0x1p-126f ? Floats{} : probability;  // no denormals: they slow products down
      total += probability;
      simd::store(scores + c, probability, simd::Full{});
    }
    const float factor = before == now ? 1.0f : before == -INFINITY ? 0.0f : std::exp(before - now);
    maximum = now;
    sum = sum * factor + simd::sum(total);
    return factor;
  }
  float lse() const { return maximum + std::log(sum); }
};

inline void scale_row(float* row, int64_t count, float factor) {
  simd::for_lanes(count,
                  [&](int64_t i, auto lanes) { simd::store(row + i, simd::load(row + i, lanes) * factor, lanes); });
}

// Positions count from the start of the sequence: queries [first, first + queries), keys up to each query's own.
struct QueryBlock {
  tiles::Matrix q;
  int64_t first, queries, dim, padded_dim, window;
  float scale;
  float *keys_t, *scores, *out;  // scratch: [dim][block], [queries][block], [queries][padded_dim]
  int64_t first_key(int64_t position) const { return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0; }
};

// load_keys(key, count) fills keys_t, load_values(key, count) gives the rows; drop(row, key, width, probabilities) acts
// on a row of probabilities. out and state receive the unnormalised sums.
template <typename LoadKeys, typename LoadValues, typename Drop>
void run_query_block(const QueryBlock& b, SoftmaxRow* state, const LoadKeys& load_keys, const LoadValues& load_values,
                     const Drop& drop) {
  constexpr int64_t kBlock = kAttentionBlock;
  std::fill_n(b.out, b.queries * b.padded_dim, 0.0f);
  const int64_t end = b.first + b.queries;
  for (int64_t key = b.first_key(b.first) / kBlock * kBlock; key < end; key += kBlock) {
    const int64_t keys = std::min(kBlock, end - key);
    load_keys(key, keys);
    const tiles::Matrix values = load_values(key, keys);
    for (int64_t row = 0; row < b.queries; row += tiles::kRows) {
      const int64_t rows = std::min<int64_t>(tiles::kRows, b.queries - row);
      const int64_t reach = std::min(keys, b.first + row + rows - key);  // keys the band's last row sees
      if (reach <= 0 || b.first_key(b.first + row) >= key + keys) continue;
      const int64_t width = tiles::round_up_lanes(reach);
      float *scores = b.scores + row * kBlock, *out = b.out + row * b.padded_dim;
      tiles::product(rows, width, b.dim, {b.q.data + row * b.q.row, b.q.row, 1}, b.keys_t, kBlock, scores, kBlock,
                     false);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t position = b.first + row + r;
        const int64_t low = std::max<int64_t>(0, b.first_key(position) - key);
        const int64_t high = std::clamp<int64_t>(position + 1 - key, 0, keys);
        const float factor = state[row + r].add(scores + r * kBlock, low, high, width, b.scale);
        if (factor != 1.0f) scale_row(out + r * b.padded_dim, b.padded_dim, factor);
        drop(row + r, key, width, scores + r * kBlock);
      }
      tiles::product(rows, b.padded_dim, reach, {scores, kBlock, 1}, values.data, values.row, out, b.padded_dim, true);
    }
  }
}

}  // namespace octet::cpu
