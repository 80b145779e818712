// For tests of the scheduler: requests, what an engine must have at its end, and a mixed load on the fake engine.
#pragma once

#include <gtest/gtest.h>

#include "infer/testing/scheduler_fake_engine.h"

namespace octet::test {

inline std::vector<int32_t> random_prompt(Philox& random, int64_t length) {
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(kVocabulary));
  return tokens;
}

inline FakeRequest request(uint64_t seed, int64_t prompt, int64_t output, bool stops = false) {
  Philox random(seed, 2);
  return {.params = {.prompt = random_prompt(random, prompt), .max_tokens = output}, .stops = stops};
}

inline SchedulerOptions options(SchedulingPolicy policy = SchedulingPolicy::kMaxUtilization) {
  return {.policy = policy, .context_length = 256, .max_sequences = 8, .token_budget = 64};
}

inline BlockManagerOptions full(int32_t blocks, int32_t block_size = 4) {
  return {.groups = {{.blocks = blocks}}, .block_size = block_size};
}

inline BlockManagerOptions full_and_window(int32_t blocks, int32_t window_blocks) {
  return {.groups = {{.blocks = blocks}, {.window = 10, .blocks = window_blocks}}, .block_size = 4};
}

// Completed sequences equal what each would generate alone; others are a prefix of it, beams what they were then.
inline void expect_right_outputs(const FakeEngine& engine) {
  for (const auto& [id, reason] : engine.ended) {
    auto want = engine.expected(id);
    const auto& got = engine.outputs.at(id);
    const bool complete =
        reason == FinishReason::kStop || reason == FinishReason::kLength || reason == FinishReason::kContext;
    ASSERT_LE(got.size(), want.size()) << "sequence " << id;
    if (!complete && engine.is_beam(id)) want = engine.expected(id, got.size());
    ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << "sequence " << id;
    ASSERT_TRUE(!complete || got.size() == want.size()) << "sequence " << id << " " << finish_reason_name(reason);
  }
}

inline void expect_nothing_held(FakeEngine& engine) {
  for (int g = 0; g < engine.blocks().groups(); ++g) {
    EXPECT_EQ(engine.blocks().stats(g).used, 0);
    EXPECT_EQ(engine.blocks().stats(g).deferred, 0);
  }
  EXPECT_EQ(engine.scheduler().stats().waiting, 0);
  EXPECT_EQ(engine.scheduler().stats().running, 0);
  EXPECT_EQ(engine.scheduler().stats().queued_tokens, 0);
  EXPECT_FALSE(engine.scheduler().has_work());
}

inline void expect_clean_end(FakeEngine& engine) {
  engine.drain();
  expect_right_outputs(engine);
  expect_nothing_held(engine);
  EXPECT_EQ(static_cast<int64_t>(engine.ended.size()), engine.scheduler().stats().submitted);
}

// So many requests, `drafting` or not, with everything at once. Returns the turns, cancellations and submissions; where
// `verified`, scheduler and blocks are recounted before and after every step.
inline int64_t run_everything(uint64_t seed, int64_t requests, bool drafting, bool verified = true) {
  SCOPED_TRACE(seed);
  int64_t operations = 0;
  Philox random(seed);
  SchedulerOptions o = options(seed % 4 == 0 ? SchedulingPolicy::kNeverEvict : SchedulingPolicy::kMaxUtilization);
  o.token_budget = 24 + static_cast<int64_t>(random.below(60));
  o.max_logit_rows = seed % 3 == 0 ? 5 : drafting ? 24 : 0;
  o.max_adjusted = seed % 2 == 0 ? 100 : 400;
  o.max_queue = 40;
  o.ageing_seconds = 15;
  const BlockManagerOptions blocks = seed % 2 == 0 ? full(70) : full_and_window(75, 40);
  FakeEngine engine(o, blocks, static_cast<int64_t>(seed % 3));
  engine.drafting = drafting;
  engine.verify_each_step = verified;
  std::vector<std::vector<int32_t>> systems;
  for (int64_t i = 0; i < 4; ++i) systems.push_back(random_prompt(random, 10 + 9 * i));
  int64_t refused = 0;
  while (engine.scheduler().stats().submitted < requests) {
    for (uint64_t i = random.below(3); i > 0; --i) {
      FakeRequest r{.params = {.max_tokens = 1 + static_cast<int64_t>(random.below(40))},
                    .stops = random.below(2) == 0};
      if (random.below(3) > 0) r.params.prompt = systems[random.below(systems.size())];
      const auto own = random_prompt(random, 1 + static_cast<int64_t>(random.below(random.below(8) ? 20 : 150)));
      r.params.prompt.insert(r.params.prompt.end(), own.begin(), own.end());
      r.params.n = random.below(6) ? 1 : 1 + static_cast<int64_t>(random.below(4));
      r.params.beams = random.below(6) == 0;
      if (r.params.beams) r.params.n = 1 + static_cast<int64_t>(random.below(5));
      if (r.params.n == 1 && !r.params.beams && random.below(7) == 0)
        r.params.score_from = 1 + static_cast<int64_t>(random.below(r.params.prompt.size()));
      r.params.priority = static_cast<int32_t>(random.below(4)) - 1;
      r.params.adapter = random.below(5) == 0;
      if (random.below(3) == 0) r.params.adjusted = 30, r.params.max_adjusted = r.params.beams ? 30 : 60;
      if (random.below(8) == 0) r.params.deadline = engine.now + 1 + static_cast<double>(random.below(60));
      refused += engine.submit(r).id < 0;
      ++operations;
    }
    if (random.below(6) == 0) {
      const int64_t last = engine.scheduler().stats().submitted;
      engine.scheduler().cancel(std::max<int64_t>(1, last - static_cast<int64_t>(random.below(40))));
      ++operations;
    }
    if (random.below(400) == 0) engine.device_error();
    engine.turn();
    ++operations;
  }
  expect_clean_end(engine);
  EXPECT_GT(refused, 0);
  std::map<FinishReason, int64_t> reasons;
  for (const auto& [id, reason] : engine.ended) ++reasons[reason];
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled, FinishReason::kTimeout})
    EXPECT_GT(reasons[reason], 10) << finish_reason_name(reason);
  EXPECT_EQ(engine.preempted > 0, o.policy == SchedulingPolicy::kMaxUtilization);
  EXPECT_GT(engine.blocks().stats(0).hits, 100);
  const SchedulerStats& stats = engine.scheduler().stats();
  EXPECT_EQ(stats.drafted_tokens > requests / 8, drafting);
  EXPECT_EQ(stats.accepted_tokens > requests / 16, drafting);
  return operations;
}

}  // namespace octet::test
