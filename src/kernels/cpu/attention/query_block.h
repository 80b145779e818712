// One block of queries of one head against its visible keys, block by block, with an online softmax: scores are kept in
// a tile, and the running maximum, sum and output row are rescaled as the maximum grows. Shared by attention and
// paged_attention, which differ in the layout of keys and values.
#pragma once

#include <cmath>

#include "kernels/cpu/attention/score_bias.h"
#include "kernels/cpu/attention/tiles.h"

namespace octet::cpu {

inline constexpr int64_t kAttentionBlock = 64;  // queries and keys of a tile

struct AttentionHeads {
  int64_t heads, kv_heads, dim, padded_dim, window;
  float scale;
  bool causal = true;
  std::vector<float> biases;  // of each head, over the scale; empty without ALiBi

  explicit AttentionHeads(const Node& node)
      : heads(node.attr<int64_t>("heads")),
        kv_heads(node.attr<int64_t>("kv_heads")),
        dim(node.attr<int64_t>("head_dim")),
        padded_dim(tiles::round_up_lanes(dim)),
        window(node.attr<int64_t>("window")),
        scale(static_cast<float>(node.attr<double>("scale"))),
        biases(biases_before_scale(node)) {}
  int64_t group() const { return heads / kv_heads; }
  int64_t q_row() const { return heads * dim; }
  int64_t kv_row() const { return kv_heads * dim; }
  float bias(int64_t head) const { return biases.empty() ? 0.0f : biases[static_cast<size_t>(head)]; }
  // First key visible to the query at position t of a sequence that starts at `start`.
  int64_t first_key(int64_t t, int64_t start = 0) const { return window > 0 ? std::max(start, t - window + 1) : start; }
  // Behind the last key visible to it, in a sequence that may end before.
  int64_t end_key(int64_t t) const { return causal ? t + 1 : window > 0 ? t + window : INT64_MAX / 2; }
  // First query, at or behind `start`, that sees the key at position t.
  int64_t first_query(int64_t t, int64_t start) const {
    return causal ? std::max(start, t) : window > 0 ? std::max(start, t - window + 1) : start;
  }
};

// Lanes first, first + 1, ...
OCTET_SIMD simd::Ints lane_indices(int64_t first) {
  return simd::constant_lanes<[](int lane) { return lane; }>() + static_cast<int32_t>(first);
}

struct SoftmaxRow {
  float maximum = -INFINITY, sum = 0;
  float lse() const { return maximum + std::log(sum); }
};

// Reduces the lanes of each of `rows` vectors: lane r of the result is that of row r. Overwrites the rows.
template <typename Join>
OCTET_SIMD simd::Floats join_lanes(simd::Floats (&row)[simd::kLanes], int64_t rows, const Join& join) {
  if (rows <= 2) {  // the same reduction order either way
    simd::Floats joined{};
    for (int64_t r = 0; r < rows; ++r) joined[r] = simd::across(row[r], join);
    return joined;
  }
  simd::transpose(row);
  for (int width = simd::kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) row[i] = join(row[i], row[i + width]);
  }
  return row[0];
}

// Converts scores of up to kLanes rows, `stride` apart, to probabilities of keys [low[r], high[r]) relative to the
// running maxima, zero in the rest of `width` (whole vectors). factors: rescaling of each row's earlier sums.
inline void softmax_rows(SoftmaxRow* state, int64_t rows, float* scores, int64_t stride, const int32_t* low,
                         const int32_t* high, int64_t width, float scale, float* factors) {
  using simd::Floats, simd::Full, simd::kLanes;
  const Floats lowest = simd::broadcast(-INFINITY);
  alignas(64) Floats joined[kLanes];
  alignas(64) float before_row[kLanes], now_row[kLanes], sum_row[kLanes];
  for (int64_t r = 0; r < kLanes; ++r) {
    Floats top = lowest;
    float* row = scores + r * stride;
    if (r >= rows) {
      before_row[r] = 0, sum_row[r] = 0;
    } else if (before_row[r] = state[r].maximum, sum_row[r] = state[r].sum; low[r] <= 0 && high[r] >= width) {
      for (int64_t c = 0; c < width; c += kLanes) top = simd::larger(simd::load(row + c, Full{}), top);
    } else {
      for (int64_t c = 0; c < width; c += kLanes) {
        const simd::Ints index = lane_indices(c);
        const Floats score = simd::load(row + c, Full{});
        const Floats visible = (index >= low[r]) & (index < high[r]) ? score : lowest;
        simd::store(row + c, visible, Full{});
        top = simd::larger(visible, top);
      }
    }
    joined[r] = top;
  }
  // A NaN is skipped here and propagates through the exponential. (scale > 0 keeps the order.)
  const Floats tops = join_lanes(joined, rows, [](Floats a, Floats b) { return simd::larger(a, b); });
  const Floats before = simd::load(before_row, Full{}), now = simd::larger(tops * scale, before);
  Floats factor = simd::exp(before - now);
  factor = before == now ? simd::broadcast(1.0f) : before == lowest ? Floats{} : factor;
  simd::store(now_row, now, Full{});
  for (int64_t r = 0; r < kLanes; ++r) {
    Floats total{};
    float* row = scores + r * stride;
    if (r < rows && now_row[r] == -INFINITY) {  // no visible key so far
      std::fill_n(row, width, 0.0f);
    } else if (r < rows) {
      const Floats offset = simd::broadcast(-now_row[r]);
      for (int64_t c = 0; c < width; c += kLanes) {
        Floats probability = simd::exp(simd::fma(simd::load(row + c, Full{}), scale, offset));
        probability = probability < 0x1p-126f ? Floats{} : probability;  // no denormals: they slow down multiplications
        total += probability;
        simd::store(row + c, probability, Full{});
      }
    }
    joined[r] = total;
  }
  const Floats totals = join_lanes(joined, rows, [](Floats a, Floats b) { return a + b; });
  simd::store(sum_row, simd::fma(simd::load(sum_row, Full{}), factor, totals), Full{});
  for (int64_t r = 0; r < rows; ++r) state[r].maximum = now_row[r], state[r].sum = sum_row[r];
  for (int64_t r = 0; r < rows; ++r) factors[r] = factor[r];
}

// scores[c] += bias (first + c): `first` is the first key's position minus the query's.
inline void add_bias(float* scores, int64_t width, float bias, int64_t first) {
  for (int64_t c = 0; c < width; c += simd::kLanes) {
    const simd::Floats distance = __builtin_convertvector(lane_indices(first + c), simd::Floats);
    simd::store(scores + c, simd::fma(distance, bias, simd::load(scores + c, simd::Full{})), simd::Full{});
  }
}

inline void scale_row(float* row, int64_t count, float factor) {
  simd::for_lanes(count,
                  [&](int64_t i, auto lanes) { simd::store(row + i, simd::load(row + i, lanes) * factor, lanes); });
}

// Converts the scores of up to kLanes queries of keys [key, key + keys) to probabilities and rescales the rows of
// `out`, out_row floats apart, as the maxima grow. query(r) gives position and bias of row r; drop(r, probabilities)
// applies dropout to it. `width`: whole vectors that hold the keys seen.
template <typename Query, typename Drop>
void softmax_band(const AttentionHeads& p, SoftmaxRow* state, int64_t rows, int64_t key, int64_t keys, int64_t width,
                  float* scores, float* out, int64_t out_row, const Query& query, const Drop& drop) {
  int32_t low[simd::kLanes], high[simd::kLanes];
  float factors[simd::kLanes];
  for (int64_t r = 0; r < rows; ++r) {
    const auto [position, bias] = query(r);
    low[r] = static_cast<int32_t>(std::max<int64_t>(0, p.first_key(position) - key));
    high[r] = static_cast<int32_t>(std::clamp<int64_t>(p.end_key(position) - key, 0, keys));
    if (bias != 0) add_bias(scores + r * kAttentionBlock, width, bias, key - position);
  }
  softmax_rows(state, rows, scores, kAttentionBlock, low, high, width, p.scale, factors);
  for (int64_t r = 0; r < rows; ++r) {
    if (factors[r] != 1.0f) scale_row(out + r * out_row, out_row, factors[r]);
    drop(r, scores + r * kAttentionBlock);
  }
}

// Positions count from the start of the sequence: queries [first, first + queries), keys up to each query's own or, not
// causal, up to `length`.
struct QueryBlock {
  const AttentionHeads& p;
  tiles::Matrix q;
  int64_t first, queries;
  float *keys_t, *scores, *out;  // scratch: [dim][block], [queries][block], [queries][padded_dim]
  float bias;                    // of scores before the scale, times key - query
  int64_t length = INT64_MAX;    // of the sequence; causal: not needed
};

// load_keys(key, count) fills keys_t, load_values(key, count) returns the rows; drop(row, key, width, probabilities)
// applies dropout to a row. out and state receive the unnormalised sums.
template <typename LoadKeys, typename LoadValues, typename Drop>
void run_query_block(const QueryBlock& b, SoftmaxRow* state, const LoadKeys& load_keys, const LoadValues& load_values,
                     const Drop& drop) {
  constexpr int64_t kBlock = kAttentionBlock;
  const int64_t padded_dim = b.p.padded_dim, end = std::min(b.length, b.p.end_key(b.first + b.queries - 1));
  std::fill_n(b.out, b.queries * padded_dim, 0.0f);
  for (int64_t key = b.p.first_key(b.first) / kBlock * kBlock; key < end; key += kBlock) {
    const int64_t keys = std::min(kBlock, end - key);
    load_keys(key, keys);
    const tiles::Matrix values = load_values(key, keys);
    for (int64_t row = 0; row < b.queries; row += tiles::kRows) {
      const int64_t rows = std::min<int64_t>(tiles::kRows, b.queries - row);
      const int64_t reach =
          std::min(keys, b.p.end_key(b.first + row + rows - 1) - key);  // keys the band's last row sees
      if (reach <= 0 || b.p.first_key(b.first + row) >= key + keys) continue;
      const int64_t width = tiles::round_up_lanes(reach);
      float *scores = b.scores + row * kBlock, *out = b.out + row * padded_dim;
      tiles::product(rows, width, b.p.dim, {b.q.data + row * b.q.row, b.q.row, 1}, b.keys_t, kBlock, scores, kBlock,
                     false);
      softmax_band(
          b.p, state + row, rows, key, keys, width, scores, out, padded_dim,
          [&](int64_t r) { return std::pair(b.first + row + r, b.bias); },
          [&](int64_t r, float* probabilities) { drop(row + r, key, width, probabilities); });
      tiles::product(rows, padded_dim, reach, {scores, kBlock, 1}, values.data, values.row, out, padded_dim, true);
    }
  }
}

}  // namespace octet::cpu
