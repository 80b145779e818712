#include "infer/testing/engine_test.h"

#include <thread>

namespace octet {
namespace {

struct Setting {
  const char* name;
  SchedulingPolicy policy;
  int64_t blocks, window;
  bool prefix_cache;
  int64_t entries = 4096;  // adjusted logits of a step
  bool drafts = false;
};

void PrintTo(const Setting& s, std::ostream* out) {
  PrintTo(s.policy, out);
  *out << ", " << s.blocks << " blocks, window " << s.window << ", " << s.entries << " adjusted logits"
       << (s.prefix_cache ? "" : ", no prefix cache") << (s.drafts ? ", drafts" : "");
}

class EngineTokens : public testing::TestWithParam<Setting> {};

// 40 concurrent requests of all kinds give what each gives alone, with caches from ample to barely enough for one.
TEST_P(EngineTokens, AreThoseOfEachRequestAlone) {
  const Setting& setting = GetParam();
  FakeOptions fake{.limits = fake_limits(setting.blocks, 4, 64, setting.window)};
  fake.limits.entries = setting.entries;
  if (setting.drafts) fake.limits = with_drafts(fake.limits);
  std::promise<void> all_submitted;
  fake.start = all_submitted.get_future().share();
  auto engine =
      test_engine(fake, {.policy = setting.policy, .prefix_cache = setting.prefix_cache, .draft_adaptive = false},
                  setting.drafts ? std::make_unique<FakeDrafter>(fake.limits.vocab) : nullptr);
  std::vector<GenerationRequest> requests;
  std::vector<GenerationStream> streams;
  for (uint64_t i = 0; i < 40; ++i) {
    requests.push_back(some_request(i));
    streams.push_back(engine->submit(requests.back()));
  }
  all_submitted.set_value();
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<Collected> texts = collect(streams[i], requests[i].n);
    for (size_t sample = 0; sample < texts.size(); ++sample) {
      Collected wanted = alone(requests[i], static_cast<int64_t>(sample), fake.limits);
      EXPECT_EQ(texts[sample].ids, wanted.ids) << "request " << i << " text " << sample << texts[sample].error;
      EXPECT_EQ(texts[sample].text, wanted.text);
      EXPECT_EQ(texts[sample].finished, wanted.finished);
      EXPECT_EQ(texts[sample].stop_id, wanted.stop_id);
    }
  }
  engine->drain();
  EngineStats stats = engine->stats();
  EXPECT_EQ(stats.finished, 40);
  EXPECT_EQ(stats.failed + stats.cancelled + stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.kv_blocks_used, 0);
  EXPECT_GT(stats.generated_tokens, 0);
  EXPECT_EQ(stats.accepted_tokens > 50, setting.drafts);
  EXPECT_EQ(stats.drafted_tokens > stats.accepted_tokens, setting.drafts);
  if (setting.policy == SchedulingPolicy::kMaxUtilization && setting.blocks < 24) {
    EXPECT_GT(stats.preemptions, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EngineTokens,
    testing::Values(Setting{"max_utilization", SchedulingPolicy::kMaxUtilization, 128, 0, true},
                    Setting{"max_utilization_full", SchedulingPolicy::kMaxUtilization, 20, 0, true},
                    Setting{"drafts", SchedulingPolicy::kMaxUtilization, 128, 0, true, 4096, true},
                    Setting{"drafts_full", SchedulingPolicy::kMaxUtilization, 20, 0, true, 4096, true},
                    Setting{"drafts_window", SchedulingPolicy::kMaxUtilization, 24, 10, true, 4096, true},
                    Setting{"drafts_never_evict", SchedulingPolicy::kNeverEvict, 40, 10, false, 4096, true},
                    Setting{"drafts_few_entries", SchedulingPolicy::kMaxUtilization, 40, 0, true, 122, true},
                    Setting{"max_utilization_full_no_prefix", SchedulingPolicy::kMaxUtilization, 20, 0, false},
                    Setting{"max_utilization_window", SchedulingPolicy::kMaxUtilization, 22, 9, true},
                    Setting{"never_evict", SchedulingPolicy::kNeverEvict, 32, 0, true},
                    Setting{"adjusted_logits_of_one", SchedulingPolicy::kMaxUtilization, 128, 0, true, 61},
                    Setting{"adjusted_logits_of_one_full", SchedulingPolicy::kMaxUtilization, 20, 0, true, 61}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Engine, TextEndsBeforeStopStringsAndIds) {
  FakeOptions fake{.limits = fake_limits()};
  auto engine = test_engine(fake);
  GenerationRequest request{.prompt_ids = {1, 2, 3}, .sampling = {.temperature = 0}, .max_tokens = 40};
  request.ignore_eos = true;
  std::string full = alone(request, 0, fake.limits).text;
  ASSERT_EQ(full.size(), 40u);
  std::string stop = full.substr(20, 3);
  size_t at = full.find(stop);
  request.stop = {"~~", stop};
  Collected text = collect_one(engine->submit(request));
  EXPECT_EQ(text.text, full.substr(0, at));
  EXPECT_EQ(text.ids.size(), at + 3);
  EXPECT_EQ(text.finished, FinishReason::kStop);

  request.stop.clear();
  request.stop_ids = {full[10] - 'A'};
  text = collect_one(engine->submit(request));
  EXPECT_EQ(text.text, full.substr(0, full.find(full[10])));
  EXPECT_EQ(text.finished, FinishReason::kStop);

  request.min_tokens = 30;  // the id must not be sampled earlier
  text = collect_one(engine->submit(request));
  EXPECT_GE(text.ids.size(), 30u);
  EXPECT_EQ(text.ids, alone(request, 0, fake.limits).ids);
}

TEST(Engine, PromptsAreTextOrIds) {
  FakeOptions fake{.limits = fake_limits()};
  auto engine = test_engine(fake);
  GenerationRequest ids{.prompt_ids = {7, 4, 11}, .sampling = {.seed = 5}, .max_tokens = 9};
  GenerationRequest text{.prompt = "HEL", .sampling = {.seed = 5}, .max_tokens = 9};  // -A: 7 4 11
  ids.prompt_ids = {'H' - 'A', 'E' - 'A', 'L' - 'A'};
  EXPECT_EQ(collect_one(engine->submit(text)).ids, collect_one(engine->submit(ids)).ids);
  text.max_tokens = 0;
  Collected nothing = collect_one(engine->submit(text));
  EXPECT_EQ(nothing.finished, FinishReason::kLength);
  EXPECT_TRUE(nothing.ids.empty());
}

TEST(Engine, LogprobsComeWithTheirIds) {
  auto engine = test_engine({.limits = fake_limits()});
  for (int64_t wanted : {0, 3, 20}) {
    Collected text =
        collect_one(engine->submit({.prompt_ids = {5}, .max_tokens = 12, .logprobs = wanted, .ignore_eos = true}));
    ASSERT_EQ(text.logprobs.size(), text.ids.size());
    ASSERT_EQ(text.top.size(), text.ids.size());
    for (size_t i = 0; i < text.ids.size(); ++i) {
      EXPECT_EQ(text.logprobs[i].id, text.ids[i]);
      EXPECT_EQ(static_cast<int64_t>(text.top[i].size()), wanted);
    }
  }
}

TEST(Engine, MasksForbidTokensAndTheirFaultsAreTheRequestsOwn) {
  auto engine = test_engine({.limits = fake_limits()});
  GenerationRequest request{.prompt_ids = {9, 8}, .max_tokens = 20, .ignore_eos = true};
  request.mask = [](int64_t, std::span<const int32_t> generated, std::span<uint32_t> allowed) {
    std::fill(allowed.begin(), allowed.end(), 0);
    allowed[0] = 1u << (10 + generated.size() % 2);
  };
  GenerationStream beside = engine->submit({.prompt_ids = {3}, .max_tokens = 30, .ignore_eos = true});
  Collected text = collect_one(engine->submit(request));
  ASSERT_EQ(text.ids.size(), 20u) << text.error;
  for (size_t i = 0; i < text.ids.size(); ++i) EXPECT_EQ(text.ids[i], i % 2 ? 11 : 10);
  request.mask = [](int64_t, std::span<const int32_t> generated, std::span<uint32_t>) {
    if (generated.size() == 4) throw std::runtime_error("grammar is stuck");
  };
  text = collect_one(engine->submit(request));
  EXPECT_EQ(text.finished, FinishReason::kError);
  EXPECT_EQ(text.kind, ErrorKind::kInternal);
  EXPECT_NE(text.error.find("grammar is stuck"), std::string::npos) << text.error;
  EXPECT_EQ(text.ids.size(), 4u);
  request.mask = [](int64_t, std::span<const int32_t>, std::span<uint32_t>) {
    fail(ErrorCode::kInvalidArgument, "the grammar takes too many steps");
  };
  EXPECT_EQ(collect_one(engine->submit(request)).kind, ErrorKind::kInvalid);
  request.mask = [](int64_t, std::span<const int32_t>, std::span<uint32_t> allowed) {
    std::fill(allowed.begin(), allowed.end(), 0);
  };
  text = collect_one(engine->submit(request));
  EXPECT_EQ(text.finished, FinishReason::kError);
  EXPECT_NE(text.error.find("forbid all"), std::string::npos) << text.error;
  EXPECT_EQ(collect(beside)[0].finished, FinishReason::kLength);
}

TEST(Engine, LogitsThatAreNotFiniteEndOneText) {
  auto engine = test_engine({.limits = fake_limits(), .poison = 17});
  GenerationStream sound =
      engine->submit({.prompt_ids = {3}, .sampling = {.logit_bias = {{17, -INFINITY}}}, .max_tokens = 30});
  Collected text = collect_one(engine->submit({.prompt_ids = {3, 17}, .max_tokens = 30}));
  EXPECT_EQ(text.finished, FinishReason::kError);
  EXPECT_NE(text.error.find("not finite"), std::string::npos);
  EXPECT_NE(collect(sound)[0].finished, FinishReason::kError);
}

TEST(Engine, SharedPrefixesAreComputedOnce) {
  FakeOptions fake{.limits = fake_limits()};
  auto engine = test_engine(fake);
  GenerationRequest request{.prompt_ids = some_ids(33, 5), .max_tokens = 5};
  auto cached = [&] {
    GenerationStream stream = engine->submit(request);
    EXPECT_EQ(collect(stream)[0].ids, alone(request, 0, fake.limits).ids);
    engine->drain();
    RequestTimes times = stream.times();
    EXPECT_EQ(times.prompt_tokens, 33);
    EXPECT_GT(times.first_token, 0);
    EXPECT_GE(times.last_token, times.first_token);
    return times.cached_tokens;
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(cached(), 32);
  request.cache_salt = "another tenant";
  EXPECT_EQ(cached(), 0);
}

TEST(Engine, AConversationComputesOnlyWhatIsNew) {
  FakeOptions fake{.limits = fake_limits()};
  auto engine = test_engine(fake);
  GenerationRequest turn;
  for (uint64_t i = 0; i < 4; ++i) {
    std::vector<int32_t> line = some_ids(6, i);
    turn.prompt_ids.insert(turn.prompt_ids.end(), line.begin(), line.end());
    turn.max_tokens = 6;
    turn.ignore_eos = true;
    GenerationStream stream = engine->submit(turn);
    Collected answer = collect(stream)[0];
    EXPECT_EQ(answer.ids, alone(turn, 0, fake.limits).ids);
    engine->drain();
    auto said = static_cast<int64_t>(turn.prompt_ids.size());
    EXPECT_GE(stream.times().cached_tokens, said - 6 - 2 * 4) << "turn " << i;  // a block at most is not known yet
    turn.prompt_ids.insert(turn.prompt_ids.end(), answer.ids.begin(), answer.ids.end());
  }
}

TEST(Engine, NSamplesShareAPromptAndDiffer) {
  FakeOptions fake{.limits = fake_limits(128)};
  auto engine = test_engine(fake);
  GenerationRequest request{
      .prompt_ids = some_ids(21, 1), .sampling = {.seed = 3}, .max_tokens = 12, .n = 5, .ignore_eos = true};
  GenerationStream stream = engine->submit(request);
  std::vector<Collected> texts = collect(stream, 5);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i].ids, alone(request, static_cast<int64_t>(i), fake.limits).ids);
    EXPECT_NE(texts[i].ids, texts[(i + 1) % 5].ids);
  }
  EXPECT_LE(engine->stats().prompt_tokens, 21 + 5);  // each but the first computes the prompt's last token
}

TEST(Engine, ASteadyBatchKeepsNothingPerToken) {
  auto engine = test_engine({.limits = fake_limits(256, 4, 64)});
  for (int round = 0; round < 3; ++round) {
    std::vector<GenerationStream> streams;
    for (int i = 0; i < 100; ++i) streams.push_back(engine->submit(some_request(static_cast<uint64_t>(i))));
    engine->drain();  // no stream is read meanwhile: readers do not block the engine
    for (GenerationStream& stream : streams) {
      std::vector<Collected> texts = collect(stream, 3);
      EXPECT_EQ(texts[0].events, 1) << "what was not taken is one event";
    }
  }
  EXPECT_EQ(engine->stats().finished, 300);
}

}  // namespace
}  // namespace octet
