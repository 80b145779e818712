// For tests and benchmarks of the engine: a Runner whose model is a hash of the tokens in its KV cache.
//
// It reads the inputs of a device: ids (some from the table `sampled`), slots, block tables, lengths. The cache holds
// (token, position) pairs and every key a query can see is checked, so any error in blocks, copies, slots or step order
// throws.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "infer/runner.h"
#include "infer/sampler.h"
#include "octet/engine.h"

namespace octet {

// The fake model: logits for the token after `tokens`.
inline uint64_t fake_hash(uint64_t hash, int32_t token) { return mix64(hash * 31 + static_cast<uint64_t>(token) + 1); }
inline std::vector<float> fake_logits(uint64_t hash, int64_t vocab) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (size_t v = 0; v < logits.size(); ++v)
    logits[v] = 8 * uniform_from_bits(static_cast<uint32_t>(mix64(hash + v + 1) >> 32)) - 4;
  return logits;
}

inline float fake_logprob(uint64_t hash, int64_t vocab, int32_t token) {
  const std::vector<float> logits = fake_logits(hash, vocab);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit);
  return logits.at(static_cast<size_t>(token)) - static_cast<float>(std::log(sum));
}

// The kTopLogprobs likeliest tokens of logits.
inline std::vector<TokenLogprob> fake_top(const std::vector<float>& logits) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit);
  std::vector<TokenLogprob> all;
  for (const float logit : logits)
    all.push_back({static_cast<int32_t>(all.size()), logit - static_cast<float>(std::log(sum))});
  const auto best = all.begin() + std::min(std::ssize(all), kTopLogprobs);
  std::partial_sort(all.begin(), best, all.end(),
                    [](const TokenLogprob& a, const TokenLogprob& b) { return a.logprob > b.logprob; });
  all.erase(best, all.end());
  return all;
}

struct FakeOptions {
  RunnerLimits limits = {};
  int64_t fail_step = 0;                // forward number that throws; 0 = none
  int64_t fail_wait = 0;                // wait number that throws
  int32_t poison = -1;                  // after this token all logits are non-finite
  double step_seconds = 0;              // how long wait() takes
  std::shared_future<void> start = {};  // if valid, the first forward waits for it
  bool memoryless = false;              // true: the same logits after any tokens
  bool checks = true;                   // false: for timing; tokens are then a function of the row
};

inline RunnerLimits fake_limits(int64_t blocks = 64, int64_t block_size = 4, int64_t context = 64, int64_t window = 0) {
  RunnerLimits limits{
      .tokens = 48, .sequences = 8, .rows = 8, .context = context, .vocab = 61, .entries = 4096, .masks = 8};
  limits.block_size = block_size;
  int64_t columns = (context + block_size - 1) / block_size;
  limits.groups.push_back({.window = 0, .blocks = blocks, .blocks_per_sequence = columns});
  if (window > 0) limits.groups.push_back({.window = window, .blocks = blocks, .blocks_per_sequence = columns});
  return limits;
}

class FakeRunner : public Runner {
 public:
  explicit FakeRunner(FakeOptions options) : options_(std::move(options)) {
    const RunnerLimits& limits = options_.limits;
    for (const CacheGroup& group : limits.groups)
      cache_.emplace_back(static_cast<size_t>(group.blocks * limits.block_size));
    sampled_.assign(static_cast<size_t>(limits.sequences), -1);
  }

  const RunnerLimits& limits() const override { return options_.limits; }
  int64_t padded_tokens(const StepInput& input) const override { return input.tokens(); }

  void copy_blocks(std::span<const BlockCopy> copies) override {
    auto size = static_cast<size_t>(options_.limits.block_size);
    for (const BlockCopy& copy : copies) {
      auto& cache = cache_.at(static_cast<size_t>(copy.group));
      for (size_t i = 0; i < size; ++i)
        cache.at(static_cast<size_t>(copy.to) * size + i) = cache.at(static_cast<size_t>(copy.from) * size + i);
    }
  }

  void write_states(std::span<const StatePart>) override {}

  void forward(const StepInput& input) override {
    if (++forwards_ == 1 && options_.start.valid()) options_.start.wait();
    if (forwards_ == options_.fail_step) fail(ErrorCode::kInternal, "device lost in forward {}", forwards_);
    require(input.tokens() <= options_.limits.tokens && input.sequences() <= options_.limits.sequences, "sizes");
    require(static_cast<int64_t>(input.segments.size()) == input.sequences() + 1, "segments");
    hashes_.clear();
    positions_.clear();
    if (options_.checks) {
      write(input);
      for (size_t s = 0; s < input.kv_lengths.size(); ++s) read(input, s);
    }
    require(positions_.size() == input.logit_rows.size() || !options_.checks, "logit rows");
    rows_ = input.logit_rows.size();
  }

  void sample(const SampleInput& input) override {
    require(static_cast<size_t>(input.rows()) == rows_ && input.store.size() == rows_, "sampled rows");
    require(static_cast<int64_t>(input.entries.size() / 2) <= options_.limits.entries, "adjusted logits");
    ids_.assign(rows_, 0);
    logprobs_.assign(rows_, -1);
    top_.clear(), top_ids_.clear(), adjusted_.clear(), adjusted_ids_.clear();
    for (size_t r = 0; r < rows_; ++r) {
      ids_[r] = options_.checks ? choose(input, r) : static_cast<int32_t>(1 + r % 50);
      if (options_.checks) logprobs_[r] = ids_[r] < 0 ? -INFINITY : fake_logprob(hashes_[r], limits().vocab, ids_[r]);
      if (input.store[r] >= 0) sampled_.at(static_cast<size_t>(input.store[r])) = ids_[r];
      if (!input.top_logprobs) continue;
      const std::vector<float> logits = fake_logits(options_.checks ? hashes_[r] : r, limits().vocab);
      add_top(logits, top_, top_ids_);
      if (!input.entries.empty() || !input.mask_rows.empty()) add_top(adjusted(input, r), adjusted_, adjusted_ids_);
    }
  }

  SampleOutput wait() override {
    ++waits_;
    if (options_.step_seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(options_.step_seconds));
    if (waits_ == options_.fail_wait) fail(ErrorCode::kInternal, "device lost in step {}", waits_);
    return {.ids = ids_,
            .logprobs = logprobs_,
            .top_logprobs = top_,
            .top_ids = top_ids_,
            .adjusted_logprobs = adjusted_,
            .adjusted_ids = adjusted_ids_};
  }

 private:
  struct Entry {
    int32_t token = -1, position = -1;
  };

  void require(bool sound, const char* what) const {
    check(sound, ErrorCode::kInternal, "fake runner: wrong {} in forward {}", what, forwards_.load());
  }

  void write(const StepInput& input) {
    for (size_t t = 0; t < input.ids.size(); ++t) {
      int32_t id = input.from[t] >= 0 ? sampled_.at(static_cast<size_t>(input.from[t])) : input.ids[t];
      for (size_t g = 0; g < cache_.size(); ++g)
        if (int32_t slot = input.groups[g].slots[t]; slot >= 0)
          cache_[g].at(static_cast<size_t>(slot)) = {id, input.positions[t]};
    }
  }

  Entry key(const StepInput& input, size_t group, size_t sequence, int64_t position) const {
    const RunnerLimits& limits = options_.limits;
    auto columns = static_cast<size_t>(limits.groups[group].blocks_per_sequence);
    int32_t block =
        input.groups[group].table.at(sequence * columns + static_cast<size_t>(position / limits.block_size));
    require(block >= 0, "block table");
    return cache_[group].at(static_cast<size_t>(block * limits.block_size + position % limits.block_size));
  }

  // Checks the keys that the queries of sequence s see; hashes its tokens up to each whose row is wanted.
  void read(const StepInput& input, size_t s) {
    int32_t begin = input.segments[s], end = input.segments[s + 1], length = input.kv_lengths[s];
    require(end > begin && input.positions[static_cast<size_t>(end - 1)] == length - 1, "lengths");
    for (size_t g = 0; g < cache_.size(); ++g) {
      int64_t window = options_.limits.groups[g].window;
      int64_t first = window > 0 ? std::max<int64_t>(0, length - (end - begin) - window + 1) : 0;
      for (int64_t p = first; p < length; ++p) require(key(input, g, s, p).position == p, "key");
    }
    const auto next_row = [&] {
      return positions_.size() < input.logit_rows.size() ? input.logit_rows[positions_.size()] : end;
    };
    if (next_row() >= end) return;
    uint64_t hash = 0;
    for (int32_t p = 0; p < length; ++p) {
      const int32_t token = key(input, 0, s, p).token;
      hash = options_.memoryless ? 1 : fake_hash(hash, token);
      if (next_row() != end - length + p) continue;
      hashes_.push_back(options_.poison >= 0 && token == options_.poison ? 0 : hash);
      positions_.push_back(p);
    }
  }

  // The likeliest tokens of a row, as op top_logprobs.
  static void add_top(const std::vector<float>& logits, std::vector<float>& logprobs, std::vector<int32_t>& ids) {
    const auto top = fake_top(logits);
    for (const TokenLogprob& token : top) logprobs.push_back(token.logprob), ids.push_back(token.id);
  }

  std::vector<float> adjusted(const SampleInput& input, size_t r) const {
    std::vector<float> logits = fake_logits(hashes_[r], options_.limits.vocab);
    for (size_t e = 0; e < input.values.size() / 3; ++e) {
      if (input.entries[2 * e] != static_cast<int32_t>(r)) continue;
      float& x = logits.at(static_cast<size_t>(input.entries[2 * e + 1]));
      x += input.values[3 * e];
      x = x > 0 ? x / input.values[3 * e + 1] : x * input.values[3 * e + 1];
      x -= input.values[3 * e + 2];
    }
    if (!input.mask_rows.empty() && input.mask_rows[r] >= 0) {
      size_t words = (logits.size() + 31) / 32, first = static_cast<size_t>(input.mask_rows[r]) * words;
      for (size_t v = 0; v < logits.size(); ++v)
        if (!(input.masks.at(first + v / 32) >> (v % 32) & 1)) logits[v] = -INFINITY;
    }
    return logits;
  }

  int32_t choose(const SampleInput& input, size_t r) const {
    if (hashes_[r] == 0) return -1;
    const std::vector<float> logits = adjusted(input, r);
    SampleRow row{.temperature = input.params[3 * r],
                  .top_p = input.params[3 * r + 1],
                  .min_p = input.params[3 * r + 2],
                  .top_k = input.top_k[r],
                  .seed = input.seeds[3 * r],
                  .sequence = input.seeds[3 * r + 1],
                  .position = input.seeds[3 * r + 2]};
    std::vector<int32_t> tokens(logits.size());
    SampleScratch scratch;
    scratch.tokens = tokens;
    return sample_from(logits, row, scratch);
  }

  FakeOptions options_;
  std::vector<std::vector<Entry>> cache_;  // [groups][blocks * block_size]
  std::vector<int32_t> sampled_;           // [sequences]
  std::vector<uint64_t> hashes_;           // of the rows to be sampled
  std::vector<int32_t> positions_;
  size_t rows_ = 0;
  std::vector<int32_t> ids_, top_ids_, adjusted_ids_;
  std::vector<float> logprobs_, top_, adjusted_;
  std::atomic<int64_t> forwards_ = 0, waits_ = 0;
};

}  // namespace octet
