#include "infer/scheduler.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "infer/testing/scheduler_soak.h"

namespace octet {
namespace {

using namespace test;

class EveryPolicy : public testing::TestWithParam<std::tuple<SchedulingPolicy, int64_t>> {
 protected:
  SchedulingPolicy policy() const { return std::get<0>(GetParam()); }
  int64_t lag() const { return std::get<1>(GetParam()); }
};

TEST_P(EveryPolicy, ServesMixedLengths) {
  FakeEngine engine(options(policy()), full(128), lag());
  Philox random(1);
  for (uint64_t i = 0; i < 60; ++i)
    ASSERT_GT(engine
                  .submit(request(i, 1 + static_cast<int64_t>(random.below(60)),
                                  1 + static_cast<int64_t>(random.below(40)), i % 2 == 0))
                  .id,
              0);
  expect_clean_end(engine);
  for (const auto& [id, reason] : engine.ended)
    EXPECT_TRUE(reason == FinishReason::kLength || reason == FinishReason::kStop) << finish_reason_name(reason);
}

// A pool for one and a half of the longest sequences under 64 of them.
TEST_P(EveryPolicy, FinishesEverythingWhenBlocksRunOut) {
  for (const BlockManagerOptions& blocks : {full(30), full_and_window(30, 12), full_and_window(60, 7)}) {
    FakeEngine engine(options(policy()), blocks, lag());
    for (uint64_t i = 0; i < 64; ++i) ASSERT_GT(engine.submit(request(i, 1 + static_cast<int64_t>(i) % 40, 40)).id, 0);
    expect_clean_end(engine);
    const SchedulerStats& stats = engine.scheduler().stats();
    EXPECT_EQ(stats.preemptions > 0, policy() == SchedulingPolicy::kMaxUtilization);
    EXPECT_LT(stats.preemptions, 64 * 8);  // bounded: the engine makes progress
  }
}

// Room for the adjusted logits of one sequence at its end: sequences take turns and none ends early.
TEST_P(EveryPolicy, AdjustedLogitsOfAStepAreShared) {
  SchedulerOptions o = options(policy());
  o.max_adjusted = 60;
  FakeEngine engine(o, full(200), lag());
  for (uint64_t i = 0; i < 24; ++i) {
    FakeRequest r = request(i, 5 + static_cast<int64_t>(i % 9), 20);
    r.params.n = i % 4 == 1 ? 3 : 1;
    if (i % 3 != 2) r.params.adjusted = 10 + static_cast<int64_t>(i), r.params.max_adjusted = test::kVocabulary;
    ASSERT_GT(engine.submit(r).id, 0);
  }
  expect_clean_end(engine);
  for (const auto& [id, reason] : engine.ended) EXPECT_EQ(reason, FinishReason::kLength);
}

TEST_P(EveryPolicy, SharesThePromptOfSeveralSequences) {
  for (const int64_t prompt : {1, 2, 15, 16, 17, 33, 64}) {
    for (const BlockManagerOptions& blocks : {full(128), full_and_window(128, 128)}) {
      FakeEngine engine(options(policy()), blocks, lag());
      FakeRequest r = request(5, prompt, 12);
      r.params.n = 5;
      ASSERT_EQ(engine.submit(r).id, 1);
      ASSERT_EQ(engine.submit(request(6, 20, 5)).id, 6);
      expect_clean_end(engine);
      EXPECT_NE(engine.outputs.at(1), engine.outputs.at(2));
      EXPECT_LT(engine.scheduler().stats().computed_tokens, prompt + 5 * 13 + 30);
    }
  }
}

TEST_P(EveryPolicy, CancelsAtAnyMoment) {
  // The k-th turn cancels; every sequence of a mixed load in turn.
  for (int64_t k = 0; k < 24; ++k)
    for (SequenceId victim = 1; victim <= 9; ++victim) {
      FakeEngine engine(options(policy()), full(40), lag());
      FakeRequest several = request(3, 30, 10);
      several.params.n = 3;
      engine.submit(request(1, 50, 20));
      engine.submit(several);  // ids 2..4
      for (uint64_t i = 0; i < 5; ++i) engine.submit(request(10 + i, 20 + 9 * static_cast<int64_t>(i), 15, true));
      for (int64_t i = 0; i < k; ++i) engine.turn();
      const bool alive = !engine.ended.contains(victim);
      EXPECT_EQ(engine.scheduler().cancel(victim), alive);
      EXPECT_FALSE(engine.scheduler().cancel(victim));
      Audit::verify(engine.scheduler());
      expect_clean_end(engine);
      EXPECT_EQ(engine.ended.at(victim) == FinishReason::kCancelled, alive);
    }
}

// Right drafts are taken in one step, wrong ones leave nothing behind: of a sequence alone, in every block position.
TEST_P(EveryPolicy, DraftsChangeNoToken) {
  for (const BlockManagerOptions& blocks : {full(40), full_and_window(40, 20), full(22)}) {
    FakeEngine engine(options(policy()), blocks, lag());
    engine.drafting = true;
    for (uint64_t i = 0; i < 24; ++i) {
      FakeRequest r = request(i, 1 + static_cast<int64_t>(i), 30, i % 2 == 0);
      r.params.n = i % 5 == 4 ? 3 : 1;
      engine.submit(r);
    }
    expect_clean_end(engine);
    const SchedulerStats& stats = engine.scheduler().stats();
    EXPECT_GT(stats.accepted_tokens, 20);
    EXPECT_GT(stats.drafted_tokens, stats.accepted_tokens + 20);
  }
}

TEST_P(EveryPolicy, EndsAtTheContext) {
  FakeEngine engine(options(policy()), full(128), lag());
  engine.submit(request(1, 250, 100));
  expect_clean_end(engine);
  EXPECT_EQ(engine.ended.at(1), FinishReason::kContext);
  EXPECT_EQ(engine.outputs.at(1).size(), 256u);
}

TEST_P(EveryPolicy, FailsExactlyTheRunning) {
  FakeEngine engine(options(policy()), full(60), lag());
  for (uint64_t i = 0; i < 30; ++i) engine.submit(request(i, 30, 20));
  for (int i = 0; i < 6; ++i) engine.turn();
  const int64_t running = engine.scheduler().stats().running, waiting = engine.scheduler().stats().waiting;
  ASSERT_GT(running, 0);
  const auto ended = static_cast<int64_t>(engine.ended.size());
  engine.device_error();
  EXPECT_EQ(static_cast<int64_t>(engine.ended.size()) - ended, running);
  EXPECT_EQ(engine.scheduler().stats().waiting, waiting);
  EXPECT_EQ(engine.blocks().stats(0).free, 60);
  expect_clean_end(engine);
  EXPECT_EQ(std::ranges::count(engine.ended, FinishReason::kError, [](const auto& e) { return e.second; }), running);
}

INSTANTIATE_TEST_SUITE_P(, EveryPolicy,
                         testing::Combine(testing::Values(SchedulingPolicy::kNeverEvict,
                                                          SchedulingPolicy::kMaxUtilization),
                                          testing::Values(0, 1, 2)),
                         [](const auto& info) {
                           return std::string(policy_name(std::get<0>(info.param))) + "_lag" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(Scheduler, PreemptionChangesNoToken) {
  for (const bool reuse : {false, true}) {
    BlockManagerOptions tight = full(22), wide = full(500);
    tight.prefix_cache = reuse;
    FakeEngine a(options(), tight), b(options(), wide);
    for (uint64_t i = 0; i < 12; ++i)
      for (FakeEngine* engine : {&a, &b}) engine->submit(request(i, 12, 50));
    expect_clean_end(a);
    expect_clean_end(b);
    EXPECT_GT(a.preempted, 5);
    EXPECT_EQ(b.preempted, 0);
    EXPECT_EQ(a.outputs, b.outputs);
    EXPECT_GT(a.scheduler().stats().recomputed_tokens, 0);
    EXPECT_EQ(a.scheduler().stats().reused_tokens > 0, reuse);
  }
}

TEST(Scheduler, DraftsSaveSteps) {
  BlockManager blocks(full(64));
  SchedulerOptions o = options();
  o.max_logit_rows = 16;
  Scheduler scheduler(o, blocks);
  const SequenceId id = scheduler.submit({.prompt = {1, 2, 3}, .max_tokens = 9}, 0).id;
  const auto commit = [&](const std::vector<int32_t>& tokens) {
    std::vector<SampledToken> results;
    for (int32_t token : tokens) results.push_back({id, token});
    scheduler.commit(scheduler.stats().steps, results);
  };
  scheduler.schedule(0);
  EXPECT_EQ(scheduler.draft_room(id), 0);  // its prompt is not computed
  commit({4});
  EXPECT_EQ(scheduler.draft_room(id), 3);      // a block less one; 8 are left
  EXPECT_EQ(scheduler.step_draft_room(), 14);  // 16 rows less its own and that of a sequence to admit
  EXPECT_THROW(scheduler.propose(id, std::vector<int32_t>(4)), Error);
  scheduler.propose(id, std::vector<int32_t>{5, 6, 9});
  const StepPlan& plan = scheduler.schedule(0);
  ASSERT_EQ(plan.sequences.size(), 1u);
  EXPECT_EQ(plan.sequences[0].count, 4);
  EXPECT_EQ(plan.sequences[0].drafts, 3);
  EXPECT_EQ(plan.logit_rows, 4);
  EXPECT_EQ(plan.decodes, 0);
  EXPECT_EQ(std::vector<int32_t>(plan.sequences[0].ids.begin(), plan.sequences[0].ids.end()),
            (std::vector<int32_t>{4, 5, 6, 9}));
  EXPECT_TRUE(scheduler.schedule(0).empty());  // its next token is not known
  EXPECT_THROW(commit({5, 6, 7, 8, 9}), Error);
  commit({5, 6, 7});
  EXPECT_EQ(blocks.stats(0).used, 2);  // six tokens, the last is not computed
  EXPECT_EQ(scheduler.tokens(id).size(), 7u);
  scheduler.propose(id, std::vector<int32_t>{1, 2});
  EXPECT_EQ(scheduler.schedule(0).sequences[0].first_position, 6);
  EXPECT_TRUE(scheduler.cancel(id));
  commit({8, 1});
  EXPECT_EQ(blocks.stats(0).used, 0);
  EXPECT_EQ(blocks.stats(0).deferred, 0);
  EXPECT_EQ(blocks.stats(0).cached, 1);  // of the seven tokens delivered
}

// A sequence that drafts as much as it may leaves rows, adjusted logits and blocks to those behind it.
TEST(Scheduler, DraftsCostOthersNothing) {
  SchedulerOptions o = options();
  o.max_logit_rows = 8;
  o.max_adjusted = 50;
  for (const bool drafting : {false, true}) {
    BlockManager blocks(full(24));
    Scheduler scheduler(o, blocks);
    for (int i = 0; i < 4; ++i)
      scheduler.submit({.prompt = {1, 2, 3}, .max_tokens = 12, .adjusted = 2, .max_adjusted = 9}, 0);
    std::map<SequenceId, int64_t> last;
    for (int64_t step = 1; scheduler.has_work(); ++step) {
      for (SequenceId id = 1; drafting && step > 1 && id <= 4; ++id)
        if (const int64_t room = last.contains(id) ? 0 : scheduler.draft_room(id); room > 0)
          scheduler.propose(id, std::vector<int32_t>(static_cast<size_t>(room), 96));
      const StepPlan& plan = scheduler.schedule(0);
      ASSERT_FALSE(plan.empty());
      std::vector<SampledToken> results;
      for (const ScheduledSequence& s : plan.sequences) results.push_back({.id = s.id, .token = 5});
      scheduler.commit(plan.step, results);
      for (const FinishedSequence& f : scheduler.take_finished()) last[f.id] = step;
    }
    for (SequenceId id = 1; id <= 4; ++id) EXPECT_EQ(last.at(id), 12) << drafting;
    EXPECT_EQ(scheduler.stats().drafted_tokens > 10, drafting);
  }
}

TEST(Scheduler, PreemptsNoMoreThanIsNeeded) {
  FakeEngine engine(options(), full(16), 1);
  for (uint64_t i = 0; i < 4; ++i) engine.submit(request(i, 8, 30));
  expect_clean_end(engine);
  EXPECT_GT(engine.preempted, 1);
  EXPECT_EQ(engine.max_preempted, 1);  // in one step
}

TEST(Scheduler, DeviceErrorLosesNoPreemptedSequence) {
  int64_t errors = 0;
  for (int64_t k = 1; k <= 10; ++k) {  // right after the k-th preemption, its sample still in flight
    FakeEngine engine(options(), full(22), 2);
    for (uint64_t i = 0; i < 12; ++i) engine.submit(request(i, 12, 50));
    while (engine.scheduler().has_work() && engine.preempted < k) engine.turn();
    engine.device_error();
    for (const auto& [id, reason] : engine.ended) errors += reason == FinishReason::kError;
    expect_clean_end(engine);
  }
  EXPECT_GT(errors, 10);
}

TEST(Scheduler, SharedBlocksStayReservedWhileOneOfTheFamilyRuns) {
  FakeEngine engine(options(SchedulingPolicy::kNeverEvict), full(13));
  FakeRequest two = request(1, 33, 8);  // 8 blocks together and 2 each
  two.params.n = 2;
  engine.submit(two);
  for (int i = 0; i < 4; ++i) engine.turn();
  EXPECT_TRUE(engine.scheduler().cancel(1));
  engine.submit(request(2, 13, 3));  // 4 blocks, and 3 are left
  engine.turn();
  EXPECT_EQ(engine.scheduler().stats().running, 1);
  expect_clean_end(engine);
}

TEST(Scheduler, PrefixHitsChangeNoToken) {
  Philox random(4);
  const std::vector<int32_t> system = random_prompt(random, 40);
  for (const BlockManagerOptions& blocks : {full(200), full_and_window(200, 80)}) {
    FakeEngine engine(options(), blocks);
    for (uint64_t i = 0; i < 20; ++i) {
      FakeRequest r = request(i, 7, 12);
      r.params.prompt.insert(r.params.prompt.begin(), system.begin(), system.end());
      r.params.salt = i % 3 == 0;
      engine.submit(r);
      if (i % 4 == 0) engine.drain();
    }
    expect_clean_end(engine);
    EXPECT_GE(engine.scheduler().stats().reused_tokens, 18 * 40);
  }
}

TEST(Scheduler, AConversationFindsItsOwnAnswerInTheCache) {
  FakeEngine engine(options(), full(64));
  engine.submit(request(1, 20, 21));
  engine.drain();
  FakeRequest next = request(2, 1, 4);
  next.params.prompt = engine.outputs.at(1);
  engine.submit(next);
  expect_clean_end(engine);
  EXPECT_EQ(engine.scheduler().stats().reused_tokens, 40);  // all full blocks of 20 + 21 tokens but the last token's
}

TEST(Scheduler, OverrunIsDiscarded) {
  FakeEngine engine(options(), full(300), 1);
  for (uint64_t i = 0; i < 40; ++i) engine.submit(request(i, 5, 200, true));
  expect_clean_end(engine);
  int64_t stops = 0;
  for (const auto& [id, reason] : engine.ended) stops += reason == FinishReason::kStop;
  EXPECT_GT(stops, 15);
  EXPECT_EQ(engine.scheduler().stats().overrun_tokens, stops);
  FakeEngine lengths(options(), full(64), 1);
  for (uint64_t i = 0; i < 40; ++i) lengths.submit(request(i, 5, 10));
  expect_clean_end(lengths);
  EXPECT_EQ(lengths.scheduler().stats().overrun_tokens, 0);
}

TEST(Scheduler, DecodesGoFirstAndPromptsFillTheBudgetInWholeBlocks) {
  SchedulerOptions o = options();
  o.token_budget = 28;
  FakeEngine engine(o, full(200));
  engine.keep_history = true;
  engine.submit(request(1, 4, 30));
  engine.turn();
  FakeRequest large = request(2, 100, 4);
  large.params.priority = 1;  // it comes first, and still leaves the decode its token
  engine.submit(large);
  expect_clean_end(engine);
  for (size_t i = 1; i <= 5; ++i) EXPECT_EQ(engine.history.at(i).sequences[0].id, 1);
  const StepPlan& mixed = engine.history.at(1);
  ASSERT_EQ(mixed.sequences.size(), 2u);
  EXPECT_EQ(mixed.decodes, 1);
  EXPECT_EQ(mixed.sequences[0].id, 1);
  EXPECT_TRUE(mixed.sequences[0].ids.empty());  // on the device
  EXPECT_EQ(mixed.sequences[1].count, 24);      // 27 left, 6 blocks of 4
  EXPECT_FALSE(mixed.sequences[1].samples);
}

TEST(Scheduler, HigherPriorityFirstThenFirstComeFirstServed) {
  SchedulerOptions o = options();
  o.max_sequences = 1;
  FakeEngine engine(o, full(64));
  engine.keep_history = true;
  for (uint64_t i = 0; i < 6; ++i) {
    FakeRequest r = request(i, 4, 2);
    r.params.priority = static_cast<int32_t>(i % 3);
    engine.submit(r);
  }
  expect_clean_end(engine);
  std::vector<SequenceId> order;
  for (const StepPlan& plan : engine.history)
    if (plan.sequences[0].first_position == 0) order.push_back(plan.sequences[0].id);
  EXPECT_EQ(order, (std::vector<SequenceId>{3, 6, 2, 5, 1, 4}));
}

TEST(Scheduler, NothingStarvesUnderASteadyStreamOfHigherPriority) {
  SchedulerOptions o = options();
  o.max_sequences = 2;
  o.ageing_seconds = 20;
  FakeEngine engine(o, full(40));
  SequenceId low = -1;
  int64_t turns = 0;
  for (uint64_t i = 0; !engine.ended.contains(low) && turns < 500; ++i, ++turns) {
    FakeRequest r = request(100 + i, 8, 8);
    r.params.priority = 2;
    for (int k = i == 0 ? 12 : i % 4 == 0; k > 0; --k) engine.submit(r);  // a little more than two slots can serve
    if (i == 1) low = engine.submit(request(1, 8, 8)).id;
    engine.turn();
  }
  EXPECT_GT(turns, 40);   // it did wait for two levels of priority,
  EXPECT_LT(turns, 130);  // and for what had come until then
}

TEST(Scheduler, LargePromptIsNotOvertakenForever) {
  SchedulerOptions o = options();
  FakeEngine engine(o, full(60));
  for (uint64_t i = 0; i < 8; ++i) engine.submit(request(i, 20, 10));
  const SequenceId large = engine.submit(request(50, 180, 10)).id;
  int64_t turns = 0;
  for (uint64_t i = 0; !engine.ended.contains(large) && turns < 500; ++i, ++turns) {
    engine.submit(request(100 + i, 8, 8));
    engine.turn();
  }
  EXPECT_LT(turns, 60);
}

TEST(Scheduler, DeadlinesEndWaitingAndRunning) {
  SchedulerOptions o = options();
  o.max_sequences = 2;
  FakeEngine engine(o, full(64));
  for (uint64_t i = 0; i < 4; ++i) {
    FakeRequest r = request(i, 8, 50);
    r.params.deadline = i == 0 ? 1000.0 : 10.0 + static_cast<double>(i);
    engine.submit(r);
  }
  expect_clean_end(engine);
  EXPECT_EQ(engine.ended.at(1), FinishReason::kLength);
  for (SequenceId id = 2; id <= 4; ++id) EXPECT_EQ(engine.ended.at(id), FinishReason::kTimeout);
  EXPECT_GT(engine.outputs.at(2).size(), 8u);
  EXPECT_EQ(engine.outputs.at(3).size(), 8u);
}

TEST(Scheduler, RefusesWithNumbers) {
  SchedulerOptions o = options();
  o.max_queue = 3;
  o.max_queued_tokens = 100;
  BlockManagerOptions blocks = full(40);
  blocks.groups[0].block_bytes = 1000;
  const auto refusal = [&](SchedulingPolicy policy, const FakeRequest& r, const char* says) {
    o.policy = policy;
    FakeEngine engine(o, blocks);
    engine.now = 5;
    const Submitted s = engine.submit(r);
    EXPECT_EQ(s.id, -1);
    EXPECT_NE(s.message.find(says), std::string::npos) << s.message;
    EXPECT_EQ(engine.scheduler().stats().refused, 1);
    return s.refusal;
  };
  constexpr auto kEvict = SchedulingPolicy::kMaxUtilization, kNever = SchedulingPolicy::kNeverEvict;
  EXPECT_EQ(refusal(kEvict, request(1, 0, 5), "prompt of 0 tokens"), Refusal::kInvalid);
  EXPECT_EQ(refusal(kEvict, request(1, 5, 0), "max_tokens 0"), Refusal::kInvalid);
  EXPECT_EQ(refusal(kEvict, request(1, 256, 5), "at most 255 tokens"), Refusal::kTooLong);
  EXPECT_EQ(refusal(kEvict, request(1, 150, 100), "need 63 KV cache blocks (63000 bytes) of group 0, which has 40"),
            Refusal::kNeverFits);
  o.max_adjusted = 29;
  FakeRequest penalised = request(1, 20, 11);
  penalised.params.adjusted = 20, penalised.params.max_adjusted = 40;
  EXPECT_EQ(refusal(kEvict, penalised, "20 logits of the first token and up to 30 of the last of 11"),
            Refusal::kNeverFits);
  FakeRequest several = request(1, 100, 20);
  several.params.n = 5;  // 24 shared blocks and 5 x 6
  EXPECT_EQ(refusal(kNever, several, "need 54 KV cache blocks"), Refusal::kNeverFits);
  several.params.n = 9;
  EXPECT_EQ(refusal(kEvict, several, "n 9 (want 1..8)"), Refusal::kInvalid);
  several.params.n = 4;
  EXPECT_EQ(refusal(kEvict, several, "0 of 3 sequences"), Refusal::kQueueFull);
  FakeRequest late = request(1, 5, 5);
  late.params.deadline = 4.75;
  EXPECT_EQ(refusal(kEvict, late, "the deadline passed 0.25 s ago"), Refusal::kLate);
}

// Repeated tokens adjust no further logits: a sequence that reports its count does not wait for unused room.
TEST(Scheduler, AdjustedLogitsAreCountedAsTold) {
  SchedulerOptions o = options();
  o.max_adjusted = 20;
  for (const bool told : {true, false}) {
    BlockManager blocks(full(64));
    Scheduler scheduler(o, blocks);
    for (int i = 0; i < 2; ++i)
      ASSERT_GT(scheduler.submit({.prompt = {1, 2, 3}, .max_tokens = 10, .adjusted = 9, .max_adjusted = 20}, 0).id, 0);
    int64_t steps = 0;
    for (; scheduler.has_work(); ++steps) {
      const StepPlan& plan = scheduler.schedule(0);
      ASSERT_FALSE(plan.empty());
      std::vector<SampledToken> results;
      for (const ScheduledSequence& s : plan.sequences)
        results.push_back({.id = s.id, .token = 5, .adjusted = told ? 9 : -1});
      scheduler.commit(plan.step, results);
      scheduler.take_finished();
    }
    EXPECT_EQ(steps, told ? 10 : 18) << told;
  }
}

TEST(Scheduler, QueueIsBoundedAndOpensAgain) {
  SchedulerOptions o = options();
  o.max_queue = 4;
  o.max_queued_tokens = 30;
  FakeEngine engine(o, full(64));
  EXPECT_GT(engine.submit(request(1, 100, 4)).id, 0);  // alone it may be longer than the bound
  EXPECT_EQ(engine.submit(request(2, 5, 4)).refusal, Refusal::kQueueFull);
  engine.turn();
  for (uint64_t i = 0; i < 4; ++i) EXPECT_GT(engine.submit(request(i, 5, 4)).id, 0);
  EXPECT_EQ(engine.submit(request(9, 5, 4)).refusal, Refusal::kQueueFull);
  expect_clean_end(engine);
}

TEST(Scheduler, RefusesMisuse) {
  BlockManager blocks(full(64));
  EXPECT_THROW(Scheduler({.context_length = 1}, blocks), Error);
  EXPECT_THROW(Scheduler({.context_length = 8, .token_budget = 3}, blocks), Error);
  Scheduler scheduler(options(), blocks);
  EXPECT_THROW(scheduler.tokens(1), Error);
  const SequenceId id = scheduler.submit(request(1, 4, 20).params, 0).id;
  EXPECT_EQ(scheduler.schedule(0).step, 1);
  EXPECT_THROW(scheduler.commit(2, {}), Error);
  EXPECT_THROW(scheduler.commit(1, {}), Error);
  EXPECT_THROW(scheduler.commit(1, std::vector<SampledToken>{{id + 1, 0}}), Error);
  scheduler.schedule(1);
  scheduler.schedule(2);
  EXPECT_THROW(scheduler.schedule(3), Error);
  scheduler.commit(1, std::vector<SampledToken>{{id, 7, FinishReason::kError}});
  EXPECT_EQ(scheduler.tokens(id).size(), 4u);
  EXPECT_EQ(scheduler.take_finished().front().reason, FinishReason::kError);
}

TEST(SchedulerSoak, EverythingAtOnce) {
  for (uint64_t seed = 1; seed <= 8; ++seed) test::run_everything(seed, 1500, /*drafting=*/seed > 4);
}

}  // namespace
}  // namespace octet
