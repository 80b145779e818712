// Beams in the scheduler, on the engine that computes nothing.
#include "infer/testing/scheduler_soak.h"

namespace octet::test {
namespace {

FakeRequest search(uint64_t seed, int64_t prompt, int64_t output, int64_t beams) {
  FakeRequest asked = request(seed, prompt, output);
  asked.params.n = beams;
  asked.params.beams = true;
  return asked;
}

TEST(SchedulerBeams, ForkBlocksAndCopyTheLastOneOnly) {
  FakeEngine engine(options(), full(64), 0);
  engine.keep_history = true;
  const SequenceId id = engine.submit(search(1, 18, 20, 4)).id;
  ASSERT_GT(id, 0);
  while (engine.scheduler().stats().finished == 0) {
    engine.turn();
    // Four blocks of the prompt are shared; a beam has at most the rest of its length for itself.
    const int64_t length = std::ssize(engine.scheduler().tokens(id));
    EXPECT_LE(engine.blocks().stats(0).used, 4 + 4 * ((length + 3) / 4 - 4));
  }
  engine.drain();
  expect_clean_end(engine);
  int64_t forked = 0;
  for (const StepPlan& plan : engine.history) {
    EXPECT_LE(plan.copies.size(), 3u) << "the last of those that share a block writes to it";
    forked += std::ssize(plan.copies);
  }
  EXPECT_GT(forked, 10);
  EXPECT_EQ(engine.blocks().stats(0).copies, forked);
}

TEST(SchedulerBeams, ACacheThatJustFitsIsEnough) {
  // 2 shared blocks, and (9 + 14 - 1 = 22 tokens: 6 blocks) - 2 for each of 5 beams.
  for (const SchedulingPolicy policy : {SchedulingPolicy::kMaxUtilization, SchedulingPolicy::kNeverEvict}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      FakeEngine engine(options(policy), full(22), 1);
      ASSERT_GT(engine.submit(search(seed, 9, 14, 5)).id, 0);
      ASSERT_GT(engine.submit(request(100 + seed, 5, 12)).id, 0);
      expect_clean_end(engine);
    }
    FakeEngine engine(options(policy), full(21), 1);
    const Submitted refused = engine.submit(search(0, 9, 14, 5));
    EXPECT_EQ(refused.refusal, Refusal::kNeverFits);
    EXPECT_NE(refused.message.find("need 22 KV cache blocks"), std::string::npos) << refused.message;
  }
}

TEST(SchedulerBeams, ArePreemptedTogetherAndGoOnWhereTheyWere) {
  int64_t preempted = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    FakeEngine engine(options(), full(30), static_cast<int64_t>(seed % 3));
    ASSERT_GT(engine.submit(request(seed, 30, 60)).id, 0);  // first in order
    ASSERT_GT(engine.submit(search(seed + 50, 10, 18, 3)).id, 0);
    ASSERT_GT(engine.submit(request(seed + 90, 3, 30)).id, 0);
    expect_clean_end(engine);
    preempted += engine.preempted;
  }
  EXPECT_GT(preempted, 10);
}

TEST(SchedulerBeams, AStepHasAllOrNone) {
  SchedulerOptions few = options();
  few.max_logit_rows = 5;
  FakeEngine engine(few, full(120), 1);  // checks each plan
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_GT(engine.submit(search(i, 7, 12, 3 + static_cast<int64_t>(i % 2))).id, 0);
    ASSERT_GT(engine.submit(request(10 + i, 4, 15)).id, 0);
  }
  expect_clean_end(engine);
}

TEST(SchedulerBeams, NothingIsPlannedBeforeTheirTokensAreKnown) {
  FakeEngine engine(options(), full(64), 1);
  engine.keep_history = true;
  const SequenceId id = engine.submit(search(3, 6, 10, 2)).id;
  const SequenceId plain = engine.submit(request(4, 6, 30)).id;
  expect_clean_end(engine);
  bool before = false;
  int64_t plain_steps = 0;
  for (const StepPlan& plan : engine.history) {
    const auto has = [&](SequenceId one) {
      return std::ranges::count(plan.sequences, one, &ScheduledSequence::id) > 0;
    };
    EXPECT_FALSE(before && has(id)) << plan.step;
    before = has(id) && plan.sequences[0].beams > 0;
    plain_steps += has(plain);
  }
  EXPECT_EQ(plain_steps, 30) << "the plain text is one ahead of the host";
}

TEST(SchedulerBeams, EndTogether) {
  for (int64_t turns = 0; turns < 12; ++turns) {  // waiting, in the prompt, in the search
    FakeEngine engine(options(), full(50), turns % 3);
    FakeRequest late = search(5, 70, 30, 3);
    late.params.deadline = static_cast<double>(turns);
    const SequenceId cancelled = engine.submit(search(6, 70, 30, 3)).id, timed = engine.submit(late).id;
    ASSERT_GT(cancelled, 0);
    for (int64_t i = 0; i < turns; ++i) engine.turn();
    EXPECT_TRUE(engine.scheduler().cancel(cancelled + 1));
    EXPECT_FALSE(engine.scheduler().cancel(cancelled)) << "ended with the other";
    expect_clean_end(engine);
    for (SequenceId id = cancelled; id < cancelled + 3; ++id)
      EXPECT_EQ(engine.ended.at(id), FinishReason::kCancelled) << turns;
    for (SequenceId id = timed; turns > 0 && id < timed + 3; ++id)
      EXPECT_EQ(engine.ended.at(id), FinishReason::kTimeout) << turns;
  }
}

TEST(SchedulerBeams, ADeviceErrorEndsThoseThatRun) {
  for (int64_t turns = 1; turns < 10; ++turns) {
    FakeEngine engine(options(), full(26), turns % 3);
    ASSERT_GT(engine.submit(search(7, 20, 20, 3)).id, 0);
    ASSERT_GT(engine.submit(search(8, 20, 20, 3)).id, 0);
    for (int64_t i = 0; i < turns; ++i) engine.turn();
    engine.device_error();
    expect_clean_end(engine);
    for (const auto& [id, reason] : engine.ended)
      EXPECT_TRUE(reason == FinishReason::kError || reason == FinishReason::kLength) << id;
  }
}

TEST(SchedulerBeams, RefusesMoreThanAStepHolds) {
  SchedulerOptions few = options();
  few.max_logit_rows = 3;
  FakeEngine engine(few, full(64));
  const Submitted refused = engine.submit(search(1, 5, 5, 4));
  EXPECT_EQ(refused.refusal, Refusal::kInvalid);
  EXPECT_NE(refused.message.find("4 beams: want at most 3"), std::string::npos) << refused.message;
}

}  // namespace
}  // namespace octet::test
