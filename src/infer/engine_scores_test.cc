// Log-probabilities of prompt tokens: chunked, beside other sequences, in a full cache, without a token sampled.
#include <cmath>

#include "infer/testing/engine_test.h"

namespace octet {
namespace {

struct Scores {
  std::vector<TokenLogprob> logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  std::vector<int32_t> ids;
  GenerationEvent last;
};

Scores read(GenerationStream& stream) {
  Scores all;
  for (GenerationEvent event; stream.next(event); all.last = event) {
    all.logprobs.insert(all.logprobs.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
    all.top.insert(all.top.end(), event.prompt_top.begin(), event.prompt_top.end());
    all.ids.insert(all.ids.end(), event.ids.begin(), event.ids.end());
  }
  return all;
}

void expect_scores(const Scores& scores, const GenerationRequest& request, const RunnerLimits& limits) {
  const std::vector<int32_t>& prompt = request.prompt_ids;
  const auto from = static_cast<size_t>(request.prompt_logprobs_from);
  EXPECT_EQ(scores.last.error, "");
  ASSERT_EQ(scores.logprobs.size(), prompt.size() - from);
  ASSERT_EQ(scores.top.size(), prompt.size() - from);
  uint64_t hash = 0;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    hash = fake_hash(hash, prompt[i]);
    if (i + 1 < from) continue;
    const TokenLogprob& score = scores.logprobs[i + 1 - from];
    EXPECT_EQ(score.id, prompt[i + 1]);
    EXPECT_EQ(score.logprob, fake_logprob(hash, limits.vocab, prompt[i + 1])) << "token " << i + 1;
    EXPECT_EQ(static_cast<int64_t>(scores.top[i + 1 - from].size()), request.prompt_logprobs);
  }
  EXPECT_EQ(scores.ids, request.max_tokens == 0 ? std::vector<int32_t>() : alone(request, 0, limits).ids);
}

struct Setting {
  const char* name;
  SchedulingPolicy policy;
  int64_t blocks, block_size, window, rows;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

class EngineScores : public testing::TestWithParam<Setting> {};

TEST_P(EngineScores, AreThoseOfEachPromptAlone) {
  const Setting& setting = GetParam();
  FakeOptions fake{.limits = fake_limits(setting.blocks, setting.block_size, 64, setting.window)};
  fake.limits.rows = fake.limits.sequences = fake.limits.masks = setting.rows;
  std::promise<void> all_submitted;
  fake.start = all_submitted.get_future().share();
  auto engine = test_engine(fake, {.policy = setting.policy});
  std::vector<GenerationRequest> requests;
  std::vector<GenerationStream> streams;
  for (uint64_t i = 0; i < 40; ++i) {
    GenerationRequest request = some_request(i);
    request.n = 1;
    if (i % 2 == 0) request.prompt_logprobs = static_cast<int64_t>(i % 3);
    if (i % 4 == 0) request.max_tokens = request.min_tokens = 0;
    if (i % 3 == 0)
      request.prompt_logprobs_from =
          std::max<int64_t>(std::ssize(request.prompt_ids) - 1 - static_cast<int64_t>(i % 5), 1);
    requests.push_back(request);
    streams.push_back(engine->submit(request));
  }
  all_submitted.set_value();
  for (size_t i = 0; i < requests.size(); ++i) {
    const Scores scores = read(streams[i]);
    if (requests[i].prompt_logprobs < 0) {
      EXPECT_TRUE(scores.logprobs.empty());
      EXPECT_EQ(scores.ids, alone(requests[i], 0, fake.limits).ids);
    } else {
      expect_scores(scores, requests[i], fake.limits);
    }
  }
  engine->drain();
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
  EXPECT_EQ(engine->stats().finished, 40);
  if (setting.blocks == 20) {
    EXPECT_GT(engine->stats().preemptions, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EngineScores,
                         testing::Values(Setting{"ample", SchedulingPolicy::kMaxUtilization, 128, 4, 0, 8},
                                         Setting{"preempting", SchedulingPolicy::kMaxUtilization, 20, 4, 0, 8},
                                         Setting{"reserving", SchedulingPolicy::kNeverEvict, 40, 4, 0, 8},
                                         Setting{"window", SchedulingPolicy::kMaxUtilization, 64, 4, 6, 8},
                                         Setting{"fewer rows than a block", SchedulingPolicy::kMaxUtilization, 16, 16,
                                                 0, 3}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

TEST(EngineScoring, DoesNotTakeACachedPrefix) {
  FakeOptions fake{.limits = fake_limits()};
  auto engine = test_engine(fake);
  GenerationRequest request{.prompt_ids = some_ids(33, 5), .max_tokens = 5};
  for (const int64_t wanted : {-1, 0, -1}) {
    request.prompt_logprobs = wanted;
    GenerationStream stream = engine->submit(request);
    const Scores scores = read(stream);
    engine->drain();
    if (wanted < 0) continue;
    expect_scores(scores, request, fake.limits);
    EXPECT_EQ(stream.times().cached_tokens, 0);
  }
  EXPECT_EQ(engine->stats().cached_tokens, 32) << "the last request took them";
}

// Continuations of one context: it is computed once, whole blocks of it, also while all of them run.
TEST(EngineScoring, TakesTheContextFromTheCache) {
  FakeOptions fake{.limits = fake_limits()};
  std::promise<void> all_submitted;
  fake.start = all_submitted.get_future().share();
  auto engine = test_engine(fake);
  std::vector<GenerationRequest> requests;
  std::vector<GenerationStream> streams;
  for (int32_t i = 0; i < 4; ++i) {
    GenerationRequest request{.prompt_ids = some_ids(33, 5), .max_tokens = 0, .prompt_logprobs = 1};
    request.prompt_logprobs_from = 33;
    for (int32_t k = 0; k <= i; ++k) request.prompt_ids.push_back(7 + i + k);
    streams.push_back(engine->submit(request));
    requests.push_back(std::move(request));
  }
  all_submitted.set_value();
  for (size_t i = 0; i < requests.size(); ++i) {
    expect_scores(read(streams[i]), requests[i], fake.limits);
    EXPECT_EQ(streams[i].times().cached_tokens, i == 0 ? 0 : 32);
  }
}

// The last token is scored only, so a prompt may have one token more than the context.
TEST(EngineScoring, ScoresATokenBehindAFullContext) {
  FakeOptions fake{.limits = fake_limits()};
  auto engine = test_engine(fake);
  GenerationRequest request{.prompt_ids = some_ids(65, 3), .max_tokens = 0, .prompt_logprobs = 0};
  for (const int64_t from : {1, 60, 64}) {
    request.prompt_logprobs_from = from;
    GenerationStream stream = engine->submit(request);
    const Scores scores = read(stream);
    expect_scores(scores, request, fake.limits);
    EXPECT_EQ(scores.last.finished, FinishReason::kLength);
    engine->drain();
    EXPECT_EQ(stream.times().cached_tokens, from == 1 ? 0 : (from - 1) / 4 * 4);
  }
}

TEST(EngineScoring, EndsByLengthWithoutATokenAndSaysWhatItRefuses) {
  auto engine = test_engine({.limits = fake_limits()});
  GenerationRequest request{.prompt_ids = {5}, .max_tokens = 0, .prompt_logprobs = 2};
  GenerationStream one = engine->submit(request);
  Scores scores = read(one);
  EXPECT_TRUE(scores.logprobs.empty());
  EXPECT_EQ(scores.last.finished, FinishReason::kLength);
  EXPECT_EQ(engine->stats().generated_tokens, 0);
  const auto refused = [&](const char* message, ErrorKind kind) {
    GenerationStream stream = engine->submit(request);
    scores = read(stream);
    EXPECT_NE(scores.last.error.find(message), std::string::npos) << scores.last.error;
    EXPECT_EQ(scores.last.error_kind, kind);
  };
  request.prompt_ids = some_ids(66, 1);
  refused("66 tokens and the context is 64", ErrorKind::kTooLong);
  request.prompt_ids = some_ids(64, 1);
  request.max_tokens = 1;
  refused("64 tokens and the context is 64", ErrorKind::kTooLong);
  request.prompt_logprobs_from = 64;
  refused("prompt_logprobs_from: 64 (want 1 .. 63", ErrorKind::kInvalid);
  request.prompt_logprobs_from = 1;
  request.prompt_ids = {5};
  request.n = 2;
  refused("n = 2", ErrorKind::kInvalid);
  request.n = 1;
  request.prompt_logprobs = 21;
  refused("prompt_logprobs: 21 (want -1 .. 20)", ErrorKind::kInvalid);
}

}  // namespace
}  // namespace octet
