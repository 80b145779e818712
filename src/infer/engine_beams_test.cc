// Beam search in the engine on the fake runner: any mix with other sequences, and every fault.
#include <cmath>
#include <set>

#include "infer/testing/engine_test.h"

namespace octet {
namespace {

using Texts = std::vector<BeamSearch::Text>;

// The search alone, with every token of the vocabulary as a candidate.
Texts search_alone(const GenerationRequest& asked, const RunnerLimits& limits) {
  std::vector<int32_t> ends = asked.stop_ids;
  if (!asked.ignore_eos) ends.push_back(kEos);
  BeamSearch search({.width = asked.beams,
                     .length_penalty = asked.length_penalty,
                     .early_stopping = asked.early_stopping,
                     .limit = std::min(asked.max_tokens, limits.context - std::ssize(asked.prompt_ids)),
                     .end_ids = ends});
  std::vector<std::vector<int32_t>> beams(static_cast<size_t>(asked.beams));
  for (;;) {
    std::vector<BeamSearch::Row> rows;
    for (const auto& beam : beams) {
      uint64_t hash = 0;
      for (int32_t id : asked.prompt_ids) hash = fake_hash(hash, id);
      for (int32_t id : beam) hash = fake_hash(hash, id);
      std::vector<TokenLogprob> next;
      for (int32_t id = 0; id < limits.vocab; ++id) next.push_back({id, fake_logprob(hash, limits.vocab, id)});
      for (const auto& [id, bias] : asked.sampling.logit_bias) next[static_cast<size_t>(id)].logprob += bias;
      if (std::ssize(beam) < asked.min_tokens)
        for (int32_t id : ends) next[static_cast<size_t>(id)].logprob = -INFINITY;
      std::vector<uint32_t> allowed(2, ~0U);
      if (asked.mask) asked.mask(0, beam, allowed);
      for (TokenLogprob& token : next)
        if ((allowed[static_cast<size_t>(token.id) / 32] >> (token.id % 32) & 1) == 0) token.logprob = -INFINITY;
      rows.push_back({std::move(next)});
    }
    const auto steps = search.advance(rows);
    if (steps.empty()) return search.texts();
    const auto before = beams;
    for (size_t i = 0; i < beams.size(); ++i) {
      beams[i] = before[static_cast<size_t>(steps[i].parent)];
      beams[i].push_back(steps[i].token);
    }
  }
}

GenerationRequest some_search(uint64_t i) {
  GenerationRequest asked{.prompt_ids = some_ids(1 + static_cast<int64_t>(i * 7 % 23), i / 2)};
  asked.max_tokens = 1 + static_cast<int64_t>(i * 5 % 23);
  asked.beams = 1 + static_cast<int64_t>(i % 5);
  asked.n = 1 + static_cast<int64_t>(i % static_cast<uint64_t>(asked.beams));
  asked.length_penalty = i % 3 == 0 ? 1.0 : i % 3 == 1 ? 0.0 : 2.0;
  asked.early_stopping = i % 4 == 0 ? EarlyStopping::kYes : i % 4 == 1 ? EarlyStopping::kNever : EarlyStopping::kNo;
  if (i % 2 == 0) asked.stop_ids = {static_cast<int32_t>(i % 60), 7, 11};
  if (i % 5 == 1) asked.sampling.logit_bias = {{3, 2.5f}, {20, -100.0f}, {kEos, 1.5f}};
  if (i % 5 == 2) asked.min_tokens = std::min<int64_t>(4, asked.max_tokens);
  if (i % 7 == 3)
    asked.mask = [](int64_t, std::span<const int32_t> generated, std::span<uint32_t> allowed) {
      allowed[generated.size() % 2] &= 0x0ff0f0f0U;
    };
  return asked;
}

void expect_found(GenerationStream& stream, const GenerationRequest& asked, const RunnerLimits& limits) {
  const Texts wanted = search_alone(asked, limits);
  std::vector<GenerationEvent> events(static_cast<size_t>(asked.n));
  for (GenerationEvent event; stream.next(event);) {
    GenerationEvent& text = events.at(static_cast<size_t>(event.sample));
    ASSERT_EQ(text.finished, FinishReason::kNone);
    ASSERT_NE(event.finished, FinishReason::kNone) << "a search's texts come at its end";
    text = event;
  }
  for (size_t i = 0; i < events.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_LT(i, wanted.size());
    ASSERT_EQ(events[i].error, "");
    std::vector<int32_t> ids;
    for (const TokenLogprob& token : wanted[i].tokens) ids.push_back(token.id);
    EXPECT_EQ(events[i].ids, ids);
    EXPECT_NEAR(events[i].score, wanted[i].score, 1e-4);  // sums of float log-probabilities
    EXPECT_EQ(events[i].stop_id, wanted[i].stop_id);
    std::string text;
    for (int32_t id : ids)
      if (id < 60) text += static_cast<char>('A' + id);
    EXPECT_EQ(events[i].text, text);
    const FinishReason length = std::ssize(ids) == asked.max_tokens ? FinishReason::kLength : FinishReason::kContext;
    EXPECT_EQ(events[i].finished, wanted[i].stop_id >= 0 ? FinishReason::kStop : length);
  }
}

void expect_no_blocks_used(Engine& engine) {
  engine.drain();
  EXPECT_EQ(engine.stats().kv_blocks_used, 0);
}

// More sequences at once than the cache holds.
RunnerLimits crowded(RunnerLimits limits) {
  limits.sequences = 20, limits.rows = limits.masks = 32;
  return limits;
}

struct Case {
  SchedulingPolicy policy;
  RunnerLimits limits;
  bool preempts, drafts;
};

void PrintTo(const Case& c, std::ostream* out) {
  PrintTo(c.policy, out);
  *out << ", " << c.limits.sequences << " texts" << (c.preempts ? ", preempted" : "") << (c.drafts ? ", drafts" : "");
}

class EngineBeams : public testing::TestWithParam<Case> {};

TEST_P(EngineBeams, AreFoundInAnyMixOfWidthsAndPlainTexts) {
  const Case& one = GetParam();
  auto drafter = one.drafts ? std::make_unique<FakeDrafter>(one.limits.vocab) : nullptr;
  auto engine =
      test_engine({.limits = one.limits}, {.policy = one.policy, .draft_adaptive = false}, std::move(drafter));
  constexpr uint64_t kRequests = 60;
  std::vector<GenerationStream> searches, plain, longest;
  for (int32_t i = 0; i < 2; ++i)  // they leave few blocks in the end
    longest.push_back(engine->submit({.prompt_ids = {1, i}, .max_tokens = 60, .ignore_eos = true}));
  for (uint64_t i = 0; i < kRequests; ++i) {
    searches.push_back(engine->submit(some_search(i)));
    plain.push_back(engine->submit(some_request(i)));
  }
  for (uint64_t i = 0; i < kRequests; ++i) {
    SCOPED_TRACE(i);
    expect_found(searches[i], some_search(i), one.limits);
    const GenerationRequest request = some_request(i);
    const std::vector<Collected> texts = collect(plain[i], request.n);
    for (size_t sample = 0; sample < texts.size(); ++sample)
      EXPECT_EQ(texts[sample].ids, alone(request, static_cast<int64_t>(sample), one.limits).ids);
  }
  expect_no_blocks_used(*engine);
  for (GenerationStream& stream : longest) EXPECT_EQ(collect(stream)[0].ids.size(), 60u);
  EXPECT_EQ(engine->stats().preemptions > 0, one.preempts) << engine->stats().preemptions;
  EXPECT_EQ(engine->stats().accepted_tokens > 10, one.drafts);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, EngineBeams,
    testing::Values(Case{SchedulingPolicy::kMaxUtilization, fake_limits(160), false, false},
                    Case{SchedulingPolicy::kMaxUtilization, crowded(fake_limits(41)), true, false},
                    Case{SchedulingPolicy::kNeverEvict, fake_limits(60), false, false},
                    Case{SchedulingPolicy::kMaxUtilization, crowded(fake_limits(41, 4, 64, 10)), true, false},
                    Case{SchedulingPolicy::kMaxUtilization, crowded(fake_limits(41)), true, true}));

TEST(EngineBeamsLogprobs, AddUpToTheScore) {
  auto engine = test_engine({.limits = fake_limits()});
  GenerationRequest asked = some_search(4);
  asked.logprobs = 3;
  GenerationStream stream = engine->submit(asked);
  int64_t texts = 0;
  for (GenerationEvent event; stream.next(event); ++texts) {
    ASSERT_EQ(event.logprobs.size(), event.ids.size());
    ASSERT_EQ(event.top.size(), event.ids.size());
    if (event.finished != FinishReason::kLength) continue;
    double sum = 0;
    for (size_t i = 0; i < event.ids.size(); ++i) {
      EXPECT_EQ(event.logprobs[i].id, event.ids[i]);
      EXPECT_EQ(event.top[i].size(), 3u);
      sum += event.logprobs[i].logprob;
    }
    EXPECT_NEAR(sum / std::pow(static_cast<double>(event.ids.size()), asked.length_penalty), event.score, 1e-5);
  }
  EXPECT_EQ(texts, asked.n);
}

TEST(EngineBeamsFaults, WhatHasNoMeaningIsRefusedByName) {
  auto engine = test_engine({.limits = fake_limits()});
  const auto refused = [&](const char* message, auto change) {
    GenerationRequest asked{.prompt_ids = {1, 2, 3}, .beams = 4};
    change(asked);
    const Collected text = collect_one(engine->submit(asked));
    EXPECT_EQ(text.kind, ErrorKind::kInvalid) << message;
    EXPECT_NE(text.error.find(message), std::string::npos) << text.error << " (want: " << message << ")";
  };
  refused("beams: 9 (want 0 .. 8)", [](auto& r) { r.beams = 9; });
  refused("beams: -1", [](auto& r) { r.beams = -1; });
  refused("n: 5 with beams", [](auto& r) { r.n = 5; });
  refused("length_penalty", [](auto& r) { r.length_penalty = NAN; });
  refused("stop: 1 with beams", [](auto& r) { r.stop = {"A"}; });
  refused("prompt_logprobs", [](auto& r) { r.prompt_logprobs = 1; });
  refused("temperature: 0.5 with beams", [](auto& r) { r.sampling.temperature = 0.5; });
  refused("top_k", [](auto& r) { r.sampling.top_k = 5; });
  refused("top_p", [](auto& r) { r.sampling.top_p = 0.9; });
  refused("min_p", [](auto& r) { r.sampling.min_p = 0.1; });
  refused("repetition_penalty", [](auto& r) { r.sampling.repetition_penalty = 1.1; });
  refused("presence_penalty", [](auto& r) { r.sampling.presence_penalty = 1; });
  refused("frequency_penalty", [](auto& r) { r.sampling.frequency_penalty = 1; });
  refused("4 beams and 18 end tokens: want at most 20", [](auto& r) { r.stop_ids.assign(17, 5); });
}

TEST(EngineBeamsFaults, CancelledInAnyPhaseAllBlocksComeBack) {
  for (int64_t after = 0; after < 8; ++after) {
    auto engine = test_engine({.limits = fake_limits(40)});
    GenerationRequest asked{.prompt_ids = some_ids(30, 1), .max_tokens = 30, .ignore_eos = true};
    asked.beams = asked.n = 4;
    std::vector<GenerationStream> streams;
    for (int i = 0; i < 3; ++i) streams.push_back(engine->submit(asked));
    while (engine->stats().steps < after) std::this_thread::yield();
    for (GenerationStream& stream : streams) stream.cancel();
    for (GenerationStream& stream : streams)
      for (const Collected& text : collect(stream, 4))
        EXPECT_TRUE(text.finished == FinishReason::kCancelled || text.finished == FinishReason::kLength);
    expect_no_blocks_used(*engine);
  }
}

TEST(EngineBeamsFaults, ATimeoutEndsAllTexts) {
  auto engine = test_engine({.limits = fake_limits(), .step_seconds = 0.01});
  GenerationRequest asked{.prompt_ids = {1, 2, 3}, .max_tokens = 60, .ignore_eos = true};
  asked.beams = asked.n = 3;
  asked.timeout_seconds = 0.05;
  GenerationStream stream = engine->submit(asked);
  for (const Collected& text : collect(stream, 3)) {
    EXPECT_EQ(text.finished, FinishReason::kTimeout);
    EXPECT_TRUE(text.ids.empty());
    EXPECT_NE(text.error.find("of 60 tokens generated"), std::string::npos) << text.error;
  }
  expect_no_blocks_used(*engine);
}

TEST(EngineBeamsFaults, ALostDeviceEndsAllTexts) {
  auto engine = test_engine({.limits = fake_limits(), .fail_wait = 5});
  GenerationRequest asked{.prompt_ids = {1, 2, 3}, .max_tokens = 60, .ignore_eos = true};
  asked.beams = 4, asked.n = 2;
  GenerationStream stream = engine->submit(asked);
  for (const Collected& text : collect(stream, 2)) EXPECT_EQ(text.kind, ErrorKind::kDevice);
}

TEST(EngineBeamsFaults, TextsThatCannotBeFoundEndAlone) {
  auto engine = test_engine({.limits = fake_limits()});
  GenerationRequest asked{.prompt_ids = {1, 2, 3}, .max_tokens = 2, .ignore_eos = true};
  asked.beams = asked.n = 4;
  asked.mask = [](int64_t, std::span<const int32_t> generated, std::span<uint32_t> allowed) {
    std::ranges::fill(allowed, 0);
    allowed[0] = generated.empty() ? 1U << 5 : 1U << 6 | 1U << 9;  // two sequences: 5 6 and 5 9
  };
  const GenerationRequest other = some_request(8);
  GenerationStream stream = engine->submit(asked);
  const Collected plain = collect_one(engine->submit(other));
  const auto texts = collect(stream, 4);
  EXPECT_EQ((std::set{texts[0].ids, texts[1].ids}), (std::set<std::vector<int32_t>>{{5, 6}, {5, 9}}));
  for (size_t i = 2; i < 4; ++i) {
    EXPECT_EQ(texts[i].kind, ErrorKind::kInternal);
    EXPECT_NE(texts[i].error.find("only 2 sequences"), std::string::npos) << texts[i].error;
  }
  EXPECT_EQ(plain.ids, alone(other, 0, fake_limits()).ids);
  expect_no_blocks_used(*engine);
}

TEST(EngineBeamsFaults, RowsThatAreNotFiniteEndTheirBeam) {
  const RunnerLimits limits = fake_limits();
  GenerationRequest asked{.prompt_ids = {1, 2, 3}, .max_tokens = 6, .ignore_eos = true};
  asked.beams = asked.n = 3;
  const int32_t poison = search_alone(asked, limits)[0].tokens[2].id;
  auto engine = test_engine({.limits = limits, .poison = poison});
  GenerationStream stream = engine->submit(asked);
  for (const Collected& text : collect(stream, 3)) {
    EXPECT_EQ(text.finished, FinishReason::kLength) << text.error;
    EXPECT_EQ(std::ranges::count(std::span(text.ids).first(5), poison), 0);
  }
}

}  // namespace
}  // namespace octet
