// The inner loop of attention's gradient on AMX tiles, for bf16. Scores and dP are exact products; probabilities and dS
// are split into two bf16 parts. dq accumulates in rows; dk and dv accumulate transposed, [head dim][keys], so that
// both read P and dS as the row pairs in which they are computed.
#pragma once

#include "kernels/cpu/attention/amx_tiles.h"
#include "kernels/cpu/attention/gradient_task.h"

#ifdef OCTET_AMX_ATTENTION
namespace octet::cpu {

class AmxGradient {
 public:
  AmxGradient(const AttentionProblem& p, int64_t dq_rows, Scratch scratch) : width_(amx::round_up_step(p.dim)) {
    const auto halves = [&](int64_t count) { return reinterpret_cast<uint16_t*>(scratch.floats(count / 2)); };
    const auto pairs = [&](int64_t count) { return reinterpret_cast<uint32_t*>(scratch.floats(count / 2)); };
    for (uint16_t** rows : {&q_, &dout_, &q_t_, &dout_t_}) *rows = halves(kBlock * width_);
    for (uint32_t** words : {&keys_, &keys_t_, &values_t_}) *words = pairs(kBlock * width_);
    for (uint32_t** words : {&p_high_, &p_low_, &ds_high_, &ds_low_}) *words = pairs(kBlock * kBlock);
    for (uint16_t** rows : {&ds_high_rows_, &ds_low_rows_}) *rows = halves(kBlock * kBlock);
    for (float** sums : {&dk_, &dv_, &row_sums_}) *sums = scratch.floats(kBlock * width_);
    for (float** tile : {&scores_, &dp_}) *tile = scratch.floats(kBlock * kBlock);
    keep_ = scratch.floats(2 * kBlock);
    words_ = reinterpret_cast<uint32_t*>(scratch.floats(random_buffer_words(kBlock) + tiles::kLanes));
    dq_ = scratch.floats((dq_rows + kBlock) * width_);
  }

  static int64_t bytes(const AttentionProblem& p, int64_t dq_rows) {
    const int64_t width = amx::round_up_step(p.dim);
    return 2 * (7 * kBlock * width + 6 * kBlock * kBlock) +
           4 * (3 * kBlock * width + 2 * kBlock * kBlock + 2 * kBlock + (dq_rows + kBlock) * width +
                random_buffer_words(kBlock) + tiles::kLanes) +
           21 * 64;
  }

  void run(const AttentionProblem& p, const KernelArgs& args, const GradientInputs& inputs,
           const GradientTask& task) const {
    const amx::Tiles tiles;
    const int64_t kv_offset = task.kv_head * p.dim, dq_rows = task.last_query - task.first_query;
    const int64_t group = task.last_head - task.first_head;
    if (task.want_dq) std::fill_n(dq_, (group * dq_rows + kBlock) * width_, 0.0f);
    for (int64_t key = task.first_key; key < task.last_key; key += kBlock) {
      const int64_t keys = std::min(kBlock, task.last_key - key), cols = amx::round_up_step(keys);
      const amx::Rows k{args.in[1].as<const BF16>() + key * p.kv_row() + kv_offset, p.kv_row(), keys, p.dim};
      const amx::Rows v{args.in[2].as<const BF16>() + key * p.kv_row() + kv_offset, p.kv_row(), keys, p.dim};
      amx::pack_transposed_pairs(k, width_, keys_t_);
      amx::pack_transposed_pairs(v, width_, values_t_);
      if (task.want_dq) amx::pack_pairs(k, width_, keys_);
      std::fill_n(dk_, kBlock * width_, 0.0f);
      std::fill_n(dv_, kBlock * width_, 0.0f);
      const int64_t last_seeing = p.window > 0 ? std::min(task.last_query, key + keys + p.window - 1) : task.last_query;
      for (int64_t head = task.first_head; head < task.last_head; ++head) {
        for (int64_t query = std::max(task.first_query, key); query < last_seeing; query += kBlock) {
          const int64_t queries = std::min(kBlock, task.last_query - query), rows = amx::round_up_step(queries);
          const int64_t at = query * p.q_row() + head * p.dim;
          const amx::Rows q{args.in[0].as<const BF16>() + at, p.q_row(), queries, p.dim};
          const amx::Rows dout{args.in[6].as<const BF16>() + at, p.q_row(), queries, p.dim};
          amx::pack_rows(q, width_, q_);
          amx::pack_rows(dout, width_, dout_);
          amx::product(rows, cols, width_, {{q_, keys_t_}}, width_, kBlock, scores_, kBlock, false);
          amx::product(rows, cols, width_, {{dout_, values_t_}}, width_, kBlock, dp_, kBlock, false);
          make_slopes(p, inputs, task, head, query, queries, key, keys);
          if (task.want_dq) {
            float* dq = dq_ + ((head - task.first_head) * dq_rows + query - task.first_query) * width_;
            // Rows after the last query are zero in dS: they do not contribute to the next head.
            amx::product(rows, width_, cols, {{ds_high_rows_, keys_}, {ds_low_rows_, keys_}}, kBlock, width_, dq,
                         width_, true);
          }
          if (!task.want_dkv) continue;
          amx::pack_transposed_rows(q, width_, q_t_);
          amx::pack_transposed_rows(dout, width_, dout_t_);
          amx::product(width_, cols, rows, {{dout_t_, p_high_}, {dout_t_, p_low_}}, kBlock, kBlock, dv_, kBlock, true);
          amx::product(width_, cols, rows, {{q_t_, ds_high_}, {q_t_, ds_low_}}, kBlock, kBlock, dk_, kBlock, true);
        }
      }
      if (!task.want_dkv) continue;
      for (int i : {1, 2}) {
        if (args.out[i].data == nullptr) continue;
        tiles::pack_transposed(i == 1 ? dk_ : dv_, kBlock, width_, cols, row_sums_, width_);
        store_rows(row_sums_, width_, keys, p.dim, args.out[i].as<BF16>() + key * p.kv_row() + kv_offset, p.kv_row());
      }
    }
    if (!task.want_dq || args.out[0].data == nullptr) return;
    for (int64_t head = 0; head < group; ++head) {
      store_rows(dq_ + head * dq_rows * width_, width_, dq_rows, p.dim,
                 args.out[0].as<BF16>() + task.first_query * p.q_row() + (task.first_head + head) * p.dim, p.q_row());
    }
  }

 private:
  static constexpr int64_t kBlock = amx::kBlock;

  // Probabilities and dS of a block from scores and dP, split, two queries at a time; zero where masked.
  void make_slopes(const AttentionProblem& p, const GradientInputs& inputs, const GradientTask& task, int64_t head,
                   int64_t query, int64_t queries, int64_t key, int64_t keys) const {
    const int64_t cols = amx::round_up_step(keys);
    for (int64_t row = 0; row < amx::round_up_step(queries); row += 2) {
      int32_t low[2] = {}, high[2] = {};
      float lse[2] = {}, delta[2] = {};
      for (int64_t r = 0; r < 2 && row + r < queries; ++r) {
        const int64_t t = query + row + r;
        low[r] = static_cast<int32_t>(std::max<int64_t>(0, p.first_key(t, task.start) - key));
        high[r] = static_cast<int32_t>(std::min(keys, t + 1 - key));
        if (p.bias(head) != 0) add_bias(scores_ + (row + r) * kBlock, cols, p.bias(head), key - t);
        lse[r] = inputs.lse[t * p.heads + head], delta[r] = inputs.delta[t * p.heads + head];
        if (inputs.stream == nullptr) continue;
        std::fill_n(keep_ + r * kBlock, kBlock, 1.0f);
        drop_probabilities(p, *inputs.stream, head, t, key - task.start, high[r], keep_ + r * kBlock, words_);
      }
      for (int64_t c = 0; c < cols; c += tiles::kLanes) {
        const simd::Ints index = lane_indices(c);
        amx::Split probability[2] = {}, ds[2] = {};
        for (int64_t r = 0; r < 2 && c < std::max(high[0], high[1]); ++r) {
          const int64_t at = (row + r) * kBlock + c;
          const Slopes slopes =
              slopes_of(simd::load(scores_ + at, simd::Full{}), simd::load(dp_ + at, simd::Full{}),
                        (index >= low[r]) & (index < high[r]),
                        inputs.stream != nullptr ? keep_ + r * kBlock + c : nullptr, p.scale, lse[r], delta[r]);
          probability[r] = amx::split(slopes.kept), ds[r] = amx::split(slopes.ds);
        }
        const int64_t at = row / 2 * kBlock + c;
        amx::store_pairs(p_high_ + at, probability[0].high, probability[1].high);
        amx::store_pairs(p_low_ + at, probability[0].low, probability[1].low);
        amx::store_pairs(ds_high_ + at, ds[0].high, ds[1].high);
        amx::store_pairs(ds_low_ + at, ds[0].low, ds[1].low);
        for (int64_t r = 0; r < 2; ++r) {
          amx::store_upper_halves(ds_high_rows_ + (row + r) * kBlock + c, ds[r].high);
          amx::store_upper_halves(ds_low_rows_ + (row + r) * kBlock + c, ds[r].low);
        }
      }
    }
  }

  int64_t width_;                                   // padded head dim
  uint16_t *q_, *dout_, *q_t_, *dout_t_;            // [block][width], transposed [width][block]
  uint32_t *keys_, *keys_t_, *values_t_;            // pairs: [block / 2][width], transposed [width / 2][block]
  uint32_t *p_high_, *p_low_, *ds_high_, *ds_low_;  // pairs of queries: [block / 2][block]
  uint16_t *ds_high_rows_, *ds_low_rows_;           // [block][block]
  float *dk_, *dv_, *row_sums_;                     // transposed [width][block]; [block][width]
  float *scores_, *dp_, *keep_, *dq_;               // [block][block], [2][block], [rows of all heads + block][width]
  uint32_t* words_;
};

}  // namespace octet::cpu
#endif
