// The inner loops of attention's gradient: what they share, and the loop in float32 vectors. A loop adds to dq, dk and
// dv what one block of queries of one head and one block of keys give.
#pragma once

#include "kernels/cpu/attention/problem.h"

namespace octet::cpu {

// Operands: q k v segments out lse dout rng; results dq dk dv.
struct GradientInputs : AttentionInputs {
  const float* lse;
  float* delta;  // [tokens, heads], in the workspace; null: delta_of() each row
};

template <typename T>
float delta_of(const T* out, const T* dout, int64_t dim) {
  simd::Floats sum{};
  simd::for_lanes(dim, [&](int64_t d, auto lanes) {
    sum = simd::fma(simd::load(out + d, lanes), simd::load(dout + d, lanes), sum);
  });
  return simd::sum(sum);
}

// Range of one task: heads of one kv head, and token ranges of one segment that start on the block grid.
struct GradientTask {
  int64_t start;  // of the segment
  int64_t kv_head, first_head, last_head;
  int64_t first_key, last_key, first_query, last_query;
  bool want_dq, want_dkv;
};

// The rows of a block: queries [query, query + q.count) of a head and keys [key, key + keys).
template <typename T>
struct GradientBlock {
  int64_t head, query, key, keys;
  tiles::Rows<T> q, out, dout;

  float delta(const AttentionProblem& p, const GradientInputs& inputs, int64_t t) const {
    if (inputs.delta != nullptr) return inputs.delta[t * p.heads + head];
    const int64_t row = (t - query) * q.row;
    return delta_of(out.data + row, dout.data + row, p.dim);
  }
};

// Probabilities times dropout, and dS, from a vector of scores and dP; keep: dropout factors, if any.
struct Slopes {
  simd::Floats kept, ds;
};
OCTET_SIMD Slopes slopes_of(simd::Floats score, simd::Floats dp, simd::Ints seen, const float* keep, float scale,
                            float lse, float delta) {
  using simd::Floats;
  Floats probability = simd::exp(simd::fma(score, scale, simd::broadcast(-lse)));
  probability = seen & ~(probability < 0x1p-126f) ? probability : Floats{};
  Floats kept = probability;
  if (keep != nullptr) {
    const Floats factor = simd::load(keep, simd::Full{});
    dp *= factor, kept *= factor;
  }
  const Floats ds = probability * (dp - delta) * scale;
  return {kept, seen ? ds : Floats{}};
}

template <typename T>
class VectorGradient {
 public:
  const int64_t width;         // of the rows of gradients
  float *const dk, *const dv;  // [block][dim]

  VectorGradient(const AttentionProblem& p, Scratch& scratch)
      : width(p.padded_dim), dk(scratch.take(kBlock * width)), dv(scratch.take(kBlock * width)) {
    for (float** rows : {&q_, &dout_, &keys_, &keys_t_, &values_t_}) *rows = scratch.take(kBlock * width);
    for (float** tile : {&probabilities_, &ds_}) *tile = scratch.take(kBlock * kBlock);
    words_ = scratch.take<uint32_t>(drop_buffer_words());
  }

  void load_keys(const tiles::Rows<T>& k, const tiles::Rows<T>& v) {
    tiles::pack_transposed(k, keys_t_, kBlock);
    tiles::pack_transposed(v, values_t_, kBlock);
    key_rows_ = tiles::rows_of(k, keys_);
  }

  // dq: of the block's queries.
  void add(const AttentionProblem& p, const GradientInputs& inputs, const GradientTask& task,
           const GradientBlock<T>& at, float* dq) {
    const tiles::Matrix q = tiles::rows_of(at.q, q_), dout = tiles::rows_of(at.dout, dout_);
    const int64_t queries = at.q.count;
    for (int64_t row = 0; row < queries; row += tiles::kRows) {
      const int64_t rows = std::min<int64_t>(tiles::kRows, queries - row);
      // Causal: >= 1, since query >= key. Else all keys, of which make_slopes() masks those outside a window.
      const int64_t reach = p.causal ? std::min(at.keys, at.query + row + rows - at.key) : at.keys;
      const int64_t seen = tiles::round_up_lanes(reach);
      float *scores = probabilities_ + row * kBlock, *dp = ds_ + row * kBlock;
      tiles::product(rows, seen, p.dim, {q.data + row * q.row, q.row, 1}, keys_t_, kBlock, scores, kBlock, false);
      tiles::product(rows, seen, p.dim, {dout.data + row * dout.row, dout.row, 1}, values_t_, kBlock, dp, kBlock,
                     false);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t t = at.query + row + r;
        if (p.bias(at.head) != 0) add_bias(scores + r * kBlock, seen, p.bias(at.head), at.key - t);
        make_slopes(p, inputs, task, at, t, seen, scores + r * kBlock, dp + r * kBlock);
      }
      if (task.want_dq) {
        tiles::product(rows, width, reach, {dp, kBlock, 1}, key_rows_.data, key_rows_.row, dq + row * width, width,
                       true);
      }
    }
    if (!task.want_dkv) return;
    for (int64_t j = 0; j < at.keys; j += tiles::kRows) {
      const int64_t rows = std::min<int64_t>(tiles::kRows, at.keys - j);
      // Causal: queries before key j do not see it; earlier bands wrote no column j.
      const int64_t unseen = p.causal ? (at.key + j - at.query) / tiles::kRows * tiles::kRows : 0;
      const int64_t from = std::clamp<int64_t>(unseen, 0, queries);
      tiles::product(rows, width, queries - from, {probabilities_ + from * kBlock + j, 1, kBlock},
                     dout.data + from * dout.row, dout.row, dv + j * width, width, true);
      tiles::product(rows, width, queries - from, {ds_ + from * kBlock + j, 1, kBlock}, q.data + from * q.row, q.row,
                     dk + j * width, width, true);
    }
  }

  // dk or dv of the keys, in rows.
  const float* rows_of(const float* gradient, int64_t) const { return gradient; }

 private:
  static constexpr int64_t kBlock = kAttentionBlock;

  // Replaces the scores of query t by probabilities times dropout, and dP by dS.
  void make_slopes(const AttentionProblem& p, const GradientInputs& inputs, const GradientTask& task,
                   const GradientBlock<T>& at, int64_t t, int64_t count, float* scores, float* dp) {
    const auto low = static_cast<int32_t>(std::max<int64_t>(0, p.first_key(t, task.start) - at.key));
    const auto high = static_cast<int32_t>(std::clamp<int64_t>(p.end_key(t) - at.key, 0, at.keys));
    const float lse = inputs.lse[t * p.heads + at.head], delta = at.delta(p, inputs, t);
    alignas(64) float keep[kBlock];
    if (inputs.stream) {
      std::fill_n(keep, count, 1.0f);
      drop_probabilities(p, *inputs.stream, at.head, t, task.start, at.key - task.start, count, keep, words_);
    }
    for (int64_t c = 0; c < count; c += simd::kLanes) {
      const simd::Ints index = lane_indices(c);
      const Slopes slopes =
          slopes_of(simd::load(scores + c, simd::Full{}), simd::load(dp + c, simd::Full{}),
                    (index >= low) & (index < high), inputs.stream ? keep + c : nullptr, p.scale, lse, delta);
      simd::store(scores + c, slopes.kept, simd::Full{});
      simd::store(dp + c, slopes.ds, simd::Full{});
    }
  }

  float *q_, *dout_, *keys_, *keys_t_, *values_t_;  // [block][dim], transposed [dim][block]
  float *probabilities_, *ds_;                      // [block][block]
  uint32_t* words_;
  tiles::Matrix key_rows_{};
};

}  // namespace octet::cpu
