// Speculation changes no token, score or end of any request, whatever the drafts; its faults are its own.
#include <atomic>
#include <cmath>

#include "infer/ngram_drafter.h"
#include "infer/testing/engine_test.h"

namespace octet {
namespace {

constexpr int64_t kVocab = 61;

EngineOptions always(int64_t draft_tokens = 5) { return {.draft_tokens = draft_tokens, .draft_adaptive = false}; }

std::unique_ptr<EngineLoop> drafting_engine(FakeOptions fake, const EngineOptions& options = always(),
                                            uint64_t wrong = 4, int64_t fail_at = 0) {
  fake.limits = with_drafts(fake.limits);
  return test_engine(fake, options, std::make_unique<FakeDrafter>(kVocab, wrong, fail_at));
}

void expect_equal(const Collected& got, const Collected& wanted, const std::string& where) {
  EXPECT_EQ(got.ids, wanted.ids) << where;
  EXPECT_EQ(got.text, wanted.text) << where;
  EXPECT_EQ(got.finished, wanted.finished) << where;
  EXPECT_EQ(got.stop, wanted.stop) << where;
  EXPECT_EQ(got.stop_id, wanted.stop_id) << where;
  EXPECT_EQ(got.error, wanted.error) << where;
  ASSERT_EQ(got.logprobs.size(), wanted.logprobs.size()) << where;
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].id, wanted.logprobs[i].id) << where;
    EXPECT_EQ(got.logprobs[i].logprob, wanted.logprobs[i].logprob) << where;
    EXPECT_EQ(got.top[i].size(), wanted.top[i].size()) << where;
  }
}

// A mask by which a token's parity follows from those before it; from `until` tokens on nothing is allowed.
GenerationRequest masked(GenerationRequest request, size_t until = 1000) {
  request.mask = [until](int64_t, std::span<const int32_t> ids, std::span<uint32_t> allowed) {
    int32_t sum = 0;
    for (const int32_t id : ids) sum += id;
    const uint32_t word = ids.size() >= until ? 0 : sum % 3 == 0 ? 0x55555555 : 0xaaaaaaaa;
    std::ranges::fill(allowed, word);
  };
  return request;
}

std::vector<GenerationRequest> every_feature() {
  const GenerationRequest plain{.prompt_ids = {5, 6, 7}, .sampling = {.seed = 3}, .max_tokens = 40, .ignore_eos = true};
  std::vector<GenerationRequest> requests;
  const auto add = [&](auto change) {
    for (const double temperature : {0.0, 0.9}) {
      requests.push_back(plain);
      requests.back().sampling.temperature = temperature;
      change(requests.back());
    }
  };
  add([](auto& r) { r.logprobs = 3; });
  add([](auto& r) { r.sampling.repetition_penalty = 1.5, r.sampling.frequency_penalty = 0.7, r.logprobs = 0; });
  add([](auto& r) { r.sampling.presence_penalty = -1, r.sampling.logit_bias = {{4, 3.0f}, {9, 0.0f}}; });
  add([](auto& r) { r.min_tokens = 15, r.ignore_eos = false, r.sampling.logit_bias = {{kEos, 20.0f}}; });
  add([](auto& r) { r.sampling.top_k = 3; });
  add([](auto& r) { r.sampling.top_p = 0.7, r.sampling.min_p = 0.1; });
  add([](auto& r) { r.n = 3; });
  add([](auto& r) { r = masked(r); });
  add([](auto& r) { r = masked(r, 17); });  // ends there with an error
  add([](auto& r) { r.stop_ids = {1, 2, 3, 4}; });
  add([](auto& r) { r.stop = {"A", "BC", "HJ"}, r.logprobs = 1; });
  add([](auto& r) { r.stop = {"C"}, r.include_stop = true; });
  add([](auto& r) { r.max_tokens = 1; });
  add([](auto& r) { r.prompt_ids = some_ids(40, 3); });     // ends at the context
  add([](auto& r) { r.prompt_ids = {9, 9, 9, 9, 9, 9}; });  // twice: the second finds its prefix
  add([](auto& r) { r.prompt_ids = some_ids(30, 4), r.prompt_logprobs = 1; });
  return requests;
}

TEST(EngineSpeculation, EveryFeatureGivesTheSame) {
  for (const int64_t blocks : {64, 20}) {
    auto plain = test_engine({.limits = fake_limits(blocks)});
    auto drafting = drafting_engine({.limits = fake_limits(blocks)});
    const std::vector<GenerationRequest> requests = every_feature();
    std::vector<GenerationStream> wanted, got;
    for (const GenerationRequest& request : requests) {
      wanted.push_back(plain->submit(request));
      got.push_back(drafting->submit(request));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto a = collect(got[i], requests[i].n), b = collect(wanted[i], requests[i].n);
      for (size_t sample = 0; sample < a.size(); ++sample)
        expect_equal(a[sample], b[sample], fmt::format("{} blocks, request {}, sample {}", blocks, i, sample));
    }
    drafting->drain();
    const EngineStats stats = drafting->stats();
    EXPECT_GT(stats.accepted_tokens, 200);
    EXPECT_GT(stats.drafted_tokens, stats.accepted_tokens);
    EXPECT_EQ(stats.kv_blocks_used, 0);
    int64_t accepted = 0;
    for (size_t i = 0; i < stats.accepted_at.size(); ++i) {
      accepted += stats.accepted_at[i];
      EXPECT_LE(stats.accepted_at[i], stats.accepted_at[i - (i > 0)]);
    }
    EXPECT_EQ(accepted, stats.accepted_tokens);
    EXPECT_EQ(stats.accepted_at[5], 0);
    EXPECT_LT(stats.steps, plain->stats().steps);
  }
}

TEST(EngineSpeculation, IsOffWhereARequestSaysSo) {
  auto engine = drafting_engine({.limits = fake_limits()});
  GenerationRequest request{.prompt_ids = {1, 2}, .max_tokens = 30, .ignore_eos = true};
  request.draft_tokens = 0;
  const std::vector<int32_t> ids = collect_one(engine->submit(request)).ids;
  engine->drain();
  EXPECT_EQ(engine->stats().drafted_tokens, 0);
  request.draft_tokens = 1;
  EXPECT_EQ(collect_one(engine->submit(request)).ids, ids);
  engine->drain();
  EXPECT_EQ(engine->stats().drafted_tokens, engine->stats().drafts);
  EXPECT_GT(engine->stats().drafts, 10);
  request.draft_tokens = 16;
  EXPECT_NE(collect_one(engine->submit(request)).error.find("draft_tokens: 16 (want -1 .. 15)"), std::string::npos);
}

// Only as many drafts as `fits` says are computed.
TEST(EngineSpeculation, DraftsAreCutWhereTheGuideForbidsThem) {
  auto engine = drafting_engine({.limits = fake_limits()});
  GenerationRequest request{.prompt_ids = {1, 2}, .max_tokens = 30, .ignore_eos = true};
  const Collected wanted = collect_one(engine->submit(request));
  engine->drain();
  const EngineStats before = engine->stats();
  std::atomic<bool> right = true;
  request.fits = [&](int64_t, std::span<const int32_t> generated, std::span<const int32_t> drafts) {
    right = right && std::ranges::equal(generated, std::span(wanted.ids).first(generated.size())) && !drafts.empty();
    return int64_t{1};
  };
  expect_equal(collect_one(engine->submit(request)), wanted, "");
  EXPECT_TRUE(right);
  engine->drain();
  const EngineStats after = engine->stats();
  EXPECT_EQ(after.drafted_tokens - before.drafted_tokens, after.drafts - before.drafts);
}

// 100,000 tokens of one distribution, most of them drafts: Pearson's statistic at 60 degrees of freedom exceeds 99.6
// once in 1000 samples; the seeds are fixed.
TEST(EngineSpeculation, SampledTokensFollowTheDistribution) {
  std::vector<float> logits = fake_logits(1, kVocab);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit);
  FakeOptions fake{.limits = fake_limits(400, 16, 220), .memoryless = true};
  fake.limits.tokens = 400;
  std::vector<std::vector<int32_t>> seen(2, std::vector<int32_t>(kVocab, 0));
  for (const bool drafts : {false, true}) {
    fake.limits = with_drafts(fake.limits);
    // Drafts that the model could give: half of them what it will sample, half another token.
    auto engine = test_engine(fake, always(), drafts ? std::make_unique<FakeDrafter>(kVocab, 2, 0, true) : nullptr);
    std::vector<GenerationStream> streams;
    for (uint64_t i = 0; i < 500; ++i)
      streams.push_back(engine->submit(
          {.prompt_ids = {1}, .sampling = {.seed = 1000 * (drafts + 1) + i}, .max_tokens = 200, .ignore_eos = true}));
    for (GenerationStream& stream : streams) {
      const std::vector<int32_t> ids = collect(stream)[0].ids;
      for (const int32_t id : ids) ++seen[drafts][static_cast<size_t>(id)];
    }
    double exact = 0;
    int64_t total = 0;
    for (size_t id = 0; id < logits.size(); ++id) {
      const double expected = 100'000 * std::exp(logits[id]) / sum;
      exact += (seen[drafts][id] - expected) * (seen[drafts][id] - expected) / expected;
      total += seen[drafts][id];
    }
    EXPECT_EQ(total, 100'000);
    EXPECT_LT(exact, 99.6) << "drafts: " << drafts;
    engine->drain();
    EXPECT_EQ(engine->stats().accepted_tokens > 10'000, drafts) << engine->stats().accepted_tokens;
  }
  double between = 0;
  for (size_t id = 0; id < logits.size(); ++id)
    between += std::pow(seen[0][id] - seen[1][id], 2) / std::max(1, seen[0][id] + seen[1][id]);
  EXPECT_LT(between, 99.6);
}

// --- faults

TEST(EngineSpeculation, ADrafterThatFailsLeavesItsTexts) {
  for (const int64_t fail_at : {1, 2, 7}) {
    auto engine = drafting_engine({.limits = fake_limits()}, always(), 4, fail_at);
    std::vector<GenerationStream> streams;
    for (uint64_t i = 0; i < 12; ++i) streams.push_back(engine->submit(some_request(i)));
    for (uint64_t i = 0; i < 12; ++i) {
      const auto texts = collect(streams[i], some_request(i).n);
      for (size_t sample = 0; sample < texts.size(); ++sample)
        EXPECT_EQ(texts[sample].ids, alone(some_request(i), static_cast<int64_t>(sample), fake_limits()).ids) << i;
    }
    engine->drain();
    EXPECT_TRUE(engine->stats().draft_failed);
    EXPECT_EQ(engine->stats().failed, 0);
    EXPECT_EQ(engine->stats().kv_blocks_used, 0);
  }
}

// Sequences that are cancelled and time out among others, in a cache that is full: blocks come back, the others are
// right.
TEST(EngineSpeculation, CancelledAndLateTextsGiveTheirBlocksBack) {
  for (const SchedulingPolicy policy : {SchedulingPolicy::kMaxUtilization, SchedulingPolicy::kNeverEvict}) {
    EngineOptions options = always();
    options.policy = policy;
    auto engine = drafting_engine({.limits = fake_limits(24), .step_seconds = 2e-4}, options, 3);
    std::vector<GenerationStream> streams;
    const auto request_of = [](uint64_t i) {
      GenerationRequest request = some_request(i);
      request.n = 1;
      if (i % 3 == 1) request.max_tokens = 25, request.min_tokens = 0, request.ignore_eos = true;
      if (i % 9 == 4) request.timeout_seconds = 0.001 * static_cast<double>(1 + i);
      return request;
    };
    for (uint64_t i = 0; i < 60; ++i) streams.push_back(engine->submit(request_of(i)));
    int64_t ended = 0;
    for (uint64_t i = 0; i < 60; ++i) {
      GenerationEvent event;
      if (i % 9 == 1) {
        ASSERT_TRUE(streams[i].next(event));  // it runs
        streams[i].cancel();
        while (streams[i].next(event)) {
        }
        continue;
      }
      const Collected text = collect(streams[i])[0], wanted = alone(request_of(i), 0, fake_limits());
      ended += text.finished == wanted.finished;
      if (text.finished == FinishReason::kTimeout || text.finished == FinishReason::kCancelled)
        EXPECT_TRUE(text.ids.size() <= wanted.ids.size() &&
                    std::equal(text.ids.begin(), text.ids.end(), wanted.ids.begin()));
      else
        EXPECT_EQ(text.ids, wanted.ids) << i;
    }
    engine->drain();
    const EngineStats stats = engine->stats();
    EXPECT_GE(ended, 40);
    EXPECT_EQ(stats.kv_blocks_used, 0);
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_GT(stats.accepted_tokens, 50);
    EXPECT_EQ(stats.preemptions > 0, policy == SchedulingPolicy::kMaxUtilization);
  }
}

TEST(EngineSpeculation, ADeviceThatFailsEndsEveryText) {
  FakeOptions fake{.limits = with_drafts(fake_limits()), .fail_step = 6};
  auto engine = test_engine(fake, always(), std::make_unique<FakeDrafter>(kVocab));
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(collect_one(engine->submit({.prompt_ids = {1}, .max_tokens = 50, .ignore_eos = true})).kind,
              ErrorKind::kDevice);
}

// A callback that throws on tokens that are only guessed ends nothing; on the sequence's own it ends the sequence
// alone.
TEST(EngineSpeculation, AMaskThatThrowsEndsItsTextWhereItWouldWithout) {
  for (const size_t at : {5u, 1000u}) {
    GenerationRequest request{
        .prompt_ids = {1, 2}, .sampling = {.temperature = 0}, .max_tokens = 30, .ignore_eos = true};
    const std::vector<int32_t> whole = alone(request, 0, fake_limits()).ids;
    request.mask = [&, at](int64_t, std::span<const int32_t> ids, std::span<uint32_t>) {
      if (ids.size() == at || !std::ranges::equal(ids, std::span(whole).first(ids.size())))
        throw std::runtime_error("not in my language");
    };
    auto engine = drafting_engine({.limits = fake_limits()}, always(), 3);
    GenerationStream beside = engine->submit(some_request(8));
    const Collected text = collect_one(engine->submit(request));
    EXPECT_EQ(text.ids.size(), std::min<size_t>(at, 30));
    EXPECT_TRUE(std::equal(text.ids.begin(), text.ids.end(), whole.begin()));
    EXPECT_EQ(text.finished, at == 5 ? FinishReason::kError : FinishReason::kLength) << text.error;
    EXPECT_EQ(collect(beside)[0].ids, alone(some_request(8), 0, fake_limits()).ids);
  }
}

// --- how many

TEST(EngineSpeculation, SimulatedAcceptanceIsMet) {
  FakeOptions fake{.limits = with_drafts(fake_limits(4000, 16, 1100))};
  EngineOptions options = always(4);
  options.accept_simulated = 0.8;
  auto engine = test_engine(fake, options, make_simulated_drafter());
  const Collected text = collect_one(engine->submit({.prompt_ids = {1}, .max_tokens = 1000, .ignore_eos = true}));
  EXPECT_EQ(text.ids.size(), 1000u) << text.error;
  engine->drain();
  const EngineStats stats = engine->stats();
  // A step gives 1 + 0.8 + 0.8^2 + 0.8^3 + 0.8^4 = 3.36 tokens.
  EXPECT_NEAR(1000.0 / static_cast<double>(stats.steps), 3.36, 0.25);
  EXPECT_NEAR(static_cast<double>(stats.accepted_at[0]) / static_cast<double>(stats.drafts), 0.8, 0.07);
}

// Drafts that are always wrong are given up, all but a few; those that are always right are not.
TEST(EngineSpeculation, LengthsFollowAcceptance) {
  for (const bool right : {false, true}) {
    FakeOptions fake{.limits = with_drafts(fake_limits(4000, 16, 1100)), .step_seconds = 2e-4};
    auto engine = test_engine(fake, {.draft_tokens = 4}, std::make_unique<FakeDrafter>(kVocab, right ? 1'000'000 : 1));
    const Collected text = collect_one(engine->submit({.prompt_ids = {1}, .max_tokens = 600, .ignore_eos = true}));
    ASSERT_EQ(text.ids.size(), 600u) << text.error;
    engine->drain();
    if (right)
      EXPECT_GT(engine->stats().accepted_tokens, 300);
    else
      EXPECT_EQ(engine->stats().accepted_tokens, 0);
  }
}

}  // namespace
}  // namespace octet
