// The inner loop of attention's gradient on AMX tiles, for bf16. Scores and dP are exact products; probabilities and dS
// are split into two bf16 parts. dq accumulates in rows; dk and dv accumulate transposed, [head dim][keys], so that
// both read P and dS as the row pairs in which they are computed.
#pragma once

#include "kernels/cpu/attention/amx_tiles.h"
#include "kernels/cpu/attention/gradient_loops.h"

#ifdef OCTET_AMX
namespace octet::cpu {

class AmxGradient {
 public:
  const int64_t width;         // padded head dim
  float *const dk, *const dv;  // transposed [width][block]

  AmxGradient(const AttentionProblem& p, Scratch& scratch)
      : width(amx::round_up_step(p.dim)), dk(scratch.take(kBlock * width)), dv(scratch.take(kBlock * width)) {
    for (uint16_t** rows : {&q_, &dout_, &q_t_, &dout_t_}) *rows = scratch.take<uint16_t>(kBlock * width);
    for (uint32_t** pairs : {&keys_, &keys_t_, &values_t_}) *pairs = scratch.take<uint32_t>(kBlock * width / 2);
    for (uint32_t** pairs : {&p_high_, &p_low_, &ds_high_, &ds_low_}) {
      *pairs = scratch.take<uint32_t>(kBlock * kBlock / 2);
    }
    for (uint16_t** rows : {&ds_high_rows_, &ds_low_rows_}) *rows = scratch.take<uint16_t>(kBlock * kBlock);
    for (float** tile : {&scores_, &dp_}) *tile = scratch.take(kBlock * kBlock);
    rows_ = scratch.take(kBlock * width);
    keep_ = scratch.take(2 * kBlock);
    words_ = scratch.take<uint32_t>(drop_buffer_words());
  }

  void load_keys(const amx::Rows& k, const amx::Rows& v) {
    amx::pack_transposed_pairs(k, width, keys_t_);
    amx::pack_transposed_pairs(v, width, values_t_);
    amx::pack_pairs(k, width, keys_);
  }

  // dq: of the block's queries; rows up to a multiple of kStep are zero in dS and add nothing.
  void add(const AttentionProblem& p, const GradientInputs& inputs, const GradientTask& task,
           const GradientBlock<BF16>& at, float* dq) {
    const int64_t rows = amx::round_up_step(at.q.count), cols = amx::round_up_step(at.keys);
    amx::pack_rows(at.q, width, q_);
    amx::pack_rows(at.dout, width, dout_);
    amx::product(rows, cols, width, {{q_, keys_t_}}, width, kBlock, scores_, kBlock, false);
    amx::product(rows, cols, width, {{dout_, values_t_}}, width, kBlock, dp_, kBlock, false);
    make_slopes(p, inputs, task, at);
    if (task.want_dq) {
      amx::product(rows, width, cols, {{ds_high_rows_, keys_}, {ds_low_rows_, keys_}}, kBlock, width, dq, width, true);
    }
    if (!task.want_dkv) return;
    amx::pack_transposed_rows(at.q, width, q_t_);
    amx::pack_transposed_rows(at.dout, width, dout_t_);
    amx::product(width, cols, rows, {{dout_t_, p_high_}, {dout_t_, p_low_}}, kBlock, kBlock, dv, kBlock, true);
    amx::product(width, cols, rows, {{q_t_, ds_high_}, {q_t_, ds_low_}}, kBlock, kBlock, dk, kBlock, true);
  }

  // dk or dv of the keys, in rows.
  const float* rows_of(const float* gradient, int64_t keys) const {
    tiles::pack_transposed(tiles::Rows<float>{gradient, kBlock, width, amx::round_up_step(keys)}, rows_, width);
    return rows_;
  }

 private:
  static constexpr int64_t kBlock = amx::kBlock;

  // Probabilities and dS of a block from scores and dP, split, two queries at a time; zero where masked.
  void make_slopes(const AttentionProblem& p, const GradientInputs& inputs, const GradientTask& task,
                   const GradientBlock<BF16>& at) const {
    const int64_t cols = amx::round_up_step(at.keys);
    for (int64_t row = 0; row < amx::round_up_step(at.q.count); row += 2) {
      int32_t low[2] = {}, high[2] = {};
      float lse[2] = {}, delta[2] = {};
      for (int64_t r = 0; r < 2 && row + r < at.q.count; ++r) {
        const int64_t t = at.query + row + r;
        low[r] = static_cast<int32_t>(std::max<int64_t>(0, p.first_key(t, task.start) - at.key));
        high[r] = static_cast<int32_t>(std::clamp<int64_t>(p.end_key(t) - at.key, 0, at.keys));
        if (p.bias(at.head) != 0) add_bias(scores_ + (row + r) * kBlock, cols, p.bias(at.head), at.key - t);
        lse[r] = inputs.lse[t * p.heads + at.head], delta[r] = at.delta(p, inputs, t);
        if (!inputs.stream) continue;
        std::fill_n(keep_ + r * kBlock, kBlock, 1.0f);
        if (high[r] == 0) continue;
        drop_probabilities(p, *inputs.stream, at.head, t, task.start, at.key - task.start, high[r], keep_ + r * kBlock,
                           words_);
      }
      for (int64_t c = 0; c < cols; c += simd::kLanes) {
        const simd::Ints index = lane_indices(c);
        amx::Split probability[2] = {}, ds[2] = {};
        for (int64_t r = 0; r < 2 && c < std::max(high[0], high[1]); ++r) {
          const int64_t from = (row + r) * kBlock + c;
          const Slopes slopes = slopes_of(simd::load(scores_ + from, simd::Full{}),
                                          simd::load(dp_ + from, simd::Full{}), (index >= low[r]) & (index < high[r]),
                                          inputs.stream ? keep_ + r * kBlock + c : nullptr, p.scale, lse[r], delta[r]);
          probability[r] = amx::split(slopes.kept), ds[r] = amx::split(slopes.ds);
        }
        const int64_t to = row / 2 * kBlock + c;
        amx::store_pairs(p_high_ + to, probability[0].high, probability[1].high);
        amx::store_pairs(p_low_ + to, probability[0].low, probability[1].low);
        amx::store_pairs(ds_high_ + to, ds[0].high, ds[1].high);
        amx::store_pairs(ds_low_ + to, ds[0].low, ds[1].low);
        for (int64_t r = 0; r < 2; ++r) {
          amx::store_upper_halves(ds_high_rows_ + (row + r) * kBlock + c, ds[r].high);
          amx::store_upper_halves(ds_low_rows_ + (row + r) * kBlock + c, ds[r].low);
        }
      }
    }
  }

  uint16_t *q_, *dout_, *q_t_, *dout_t_;            // [block][width], transposed [width][block]
  uint32_t *keys_, *keys_t_, *values_t_;            // pairs: [block / 2][width], transposed [width / 2][block]
  uint32_t *p_high_, *p_low_, *ds_high_, *ds_low_;  // pairs of queries: [block / 2][block]
  uint16_t *ds_high_rows_, *ds_low_rows_;           // [block][block]
  float *scores_, *dp_, *rows_, *keep_;             // [block][block], [block][width], [2][block]
  uint32_t* words_;
  amx::Tiles configured_;
};

}  // namespace octet::cpu
#endif
