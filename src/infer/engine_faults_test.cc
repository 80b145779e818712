// Faults of one request, of readers and of the device, and their effect on other requests.
#include <atomic>
#include <set>
#include <thread>

#include "infer/testing/engine_test.h"

namespace octet {
namespace {

GenerationRequest endless(int64_t tokens = 60) {
  return {.prompt_ids = {1, 2}, .sampling = {.temperature = 0}, .max_tokens = tokens, .ignore_eos = true};
}

void expect_refused(Engine& engine, const GenerationRequest& request, const std::string& message,
                    ErrorKind kind = ErrorKind::kInvalid) {
  GenerationStream stream = engine.submit(request);
  GenerationEvent event;
  ASSERT_TRUE(stream.next(event));
  EXPECT_EQ(event.finished, FinishReason::kError);
  EXPECT_STREQ(error_kind_name(event.error_kind), error_kind_name(kind)) << message;
  EXPECT_NE(event.error.find(message), std::string::npos) << event.error << " (want: " << message << ")";
  EXPECT_FALSE(stream.next(event));
}

TEST(EngineFaults, RequestsThatCannotRunAreRefusedWithTheValue) {
  auto engine = test_engine({.limits = fake_limits(14)});
  const GenerationRequest good = {.prompt_ids = {1, 2, 3}, .max_tokens = 8};
  auto with = [&](auto change) {
    GenerationRequest request = good;
    change(request);
    return request;
  };
  expect_refused(*engine, GenerationRequest(), "prompt is empty");
  expect_refused(*engine, with([](auto& r) { r.prompt = "A"; }), "both prompt and prompt_ids");
  expect_refused(*engine, with([](auto& r) { r.prompt_ids = {1, 61}; }), "id 61 is outside the vocabulary of 61");
  expect_refused(*engine, with([](auto& r) { r.prompt_ids = {-1}; }), "id -1");
  expect_refused(*engine, with([](auto& r) { r.prompt_ids.clear(), r.prompt = "A\x01"; }), "not among the vocabulary");
  expect_refused(*engine, with([](auto& r) { r.prompt_ids = some_ids(64, 1); }), "64 tokens and the context is 64",
                 ErrorKind::kTooLong);
  expect_refused(*engine, with([](auto& r) { r.prompt_ids = some_ids(60, 1); }), "block", ErrorKind::kTooLong);
  expect_refused(*engine, with([](auto& r) { r.prompt_ids = some_ids(20, 1), r.n = 8, r.max_tokens = 40; }),
                 "need 15 KV cache blocks", ErrorKind::kTooLong);
  expect_refused(*engine, with([](auto& r) { r.max_tokens = -1; }), "max_tokens: -1");
  expect_refused(*engine, with([](auto& r) { r.min_tokens = 9; }), "min_tokens: 9 (want 0 .. 8)");
  expect_refused(*engine, with([](auto& r) { r.n = 0; }), "n: 0 (want 1 .. 8)");
  expect_refused(*engine, with([](auto& r) { r.n = 9; }), "n: 9 (want 1 .. 8)");
  expect_refused(*engine, with([](auto& r) { r.logprobs = 21; }), "logprobs: 21 (want -1 .. 20)");
  expect_refused(*engine, with([](auto& r) { r.stop = {""}; }), "empty stop string");
  expect_refused(*engine, with([](auto& r) { r.stop_ids = {99}; }), "stop_ids: id 99");
  expect_refused(*engine, with([](auto& r) { r.timeout_seconds = -1; }), "timeout_seconds: -1");
  expect_refused(*engine, with([](auto& r) { r.timeout_seconds = NAN; }), "timeout_seconds: nan");
  expect_refused(*engine, with([](auto& r) { r.sampling.temperature = -1; }), "temperature");
  expect_refused(*engine, with([](auto& r) { r.sampling.top_p = -0.5; }), "top_p");
  expect_refused(*engine, with([](auto& r) { r.sampling.top_k = -1; }), "top_k");
  expect_refused(*engine, with([](auto& r) { r.sampling.min_p = 2; }), "min_p");
  expect_refused(*engine, with([](auto& r) { r.sampling.repetition_penalty = 0; }), "repetition_penalty");
  expect_refused(*engine, with([](auto& r) { r.sampling.presence_penalty = NAN; }), "presence_penalty");
  expect_refused(*engine, with([](auto& r) { r.sampling.logit_bias = {{61, 1}}; }), "61");
  EXPECT_EQ(collect_one(engine->submit(good)).error, "") << "others are served";
  EXPECT_GE(engine->stats().failed, 20);
}

TEST(EngineFaults, AdjustedLogitsAreRefusedOnlyWhereOneTextNeedsTooMany) {
  RunnerLimits limits = fake_limits();
  limits.entries = 30;
  auto engine = test_engine({.limits = limits});
  GenerationRequest request{.prompt_ids = some_ids(20, 1), .max_tokens = 8, .ignore_eos = true};
  request.sampling.repetition_penalty = 1.1;
  std::vector<GenerationStream> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(engine->submit(request));
  for (GenerationStream& stream : streams) EXPECT_EQ(collect(stream)[0].ids, alone(request, 0, limits).ids);
  request.max_tokens = 40;
  expect_refused(*engine, request, "a step has room for 30", ErrorKind::kTooLong);
  request.sampling = {};
  for (int32_t id = 0; id < 31; ++id) request.sampling.logit_bias[id] = 1;
  expect_refused(*engine, request, "adjust 31 logits of the first token", ErrorKind::kTooLong);
}

TEST(TenantSalts, AreNeverSharedAndDoNotGrowForEver) {
  TenantSalts salts(10'000);
  EXPECT_EQ(salts.number_of(""), 0u);
  const uint64_t first = salts.number_of("tenant 0");
  EXPECT_EQ(salts.number_of("tenant 0"), first);
  std::set<uint64_t> seen = {0, first};
  for (int i = 1; i < 1000; ++i) {
    EXPECT_TRUE(seen.insert(salts.number_of("tenant " + std::to_string(i))).second);
    EXPECT_LE(salts.remembered(), 100u);
  }
  EXPECT_TRUE(seen.insert(salts.number_of("tenant 0")).second) << "forgotten: a number nobody had";
  EXPECT_TRUE(seen.insert(salts.number_of(std::string(20'000, 'x'))).second);
  EXPECT_TRUE(seen.insert(salts.number_of("tenant 0")).second);
}

TEST(EngineFaults, WithoutATokenizerIdsGoInAndOut) {
  EngineLoop engine({.runner = std::make_unique<FakeRunner>(FakeOptions{.limits = fake_limits()})}, {});
  GenerationRequest words;
  words.prompt = "A";
  expect_refused(engine, words, "no tokenizer");
  GenerationRequest stops = endless();
  stops.stop = {"x"};
  expect_refused(engine, stops, "stop_ids");
  Collected text = collect_one(engine.submit(endless(7)));
  EXPECT_EQ(text.ids.size(), 7u);
  EXPECT_EQ(text.text, "");
}

TEST(EngineFaults, TheQueueIsBounded) {
  auto engine = test_engine({.limits = fake_limits(), .step_seconds = 0.002}, {.max_sequences = 2, .max_waiting = 4});
  std::vector<GenerationStream> streams;
  int refused = 0;
  for (int i = 0; i < 20; ++i) streams.push_back(engine->submit(endless()));
  for (GenerationStream& stream : streams) {
    Collected text = collect(stream)[0];
    if (text.finished != FinishReason::kError) continue;
    EXPECT_EQ(text.kind, ErrorKind::kQueueFull);
    EXPECT_NE(text.error.find("of 4 sequences and "), std::string::npos) << text.error;
    ++refused;
  }
  EXPECT_GE(refused, 14);
  EXPECT_LE(refused, 16);
  EXPECT_EQ(collect_one(engine->submit(endless(3))).ids.size(), 3u) << "room again";
}

TEST(EngineFaults, TheQueueIsBoundedInPromptTokens) {
  auto engine =
      test_engine({.limits = fake_limits(), .step_seconds = 0.002}, {.max_sequences = 1, .max_waiting_tokens = 40});
  GenerationRequest request = endless(40);
  request.prompt_ids = some_ids(15, 1);
  std::vector<GenerationStream> streams;
  for (int i = 0; i < 12; ++i) streams.push_back(engine->submit(request));
  int refused = 0;
  for (GenerationStream& stream : streams) {
    Collected text = collect(stream)[0];
    if (text.finished != FinishReason::kError) continue;
    EXPECT_EQ(text.kind, ErrorKind::kQueueFull);
    EXPECT_NE(text.error.find("30 of 40 prompt tokens are waiting, 1 and 15 more"), std::string::npos) << text.error;
    ++refused;
  }
  EXPECT_GE(refused, 9);
  EXPECT_LE(refused, 10);
  engine->drain();
  streams.clear();
  for (int i = 0; i < 2; ++i) streams.push_back(engine->submit(request));
  for (GenerationStream& stream : streams) EXPECT_EQ(collect(stream)[0].ids.size(), 40u) << "room again";
}

TEST(EngineFaults, CancelInEveryState) {
  auto engine = test_engine({.limits = fake_limits(), .step_seconds = 0.001}, {.max_sequences = 2});
  GenerationStream running = engine->submit(endless()), second = engine->submit(endless());
  GenerationStream waiting = engine->submit(endless());
  GenerationEvent event;
  ASSERT_TRUE(running.next(event));  // running
  waiting.cancel();
  running.cancel();
  running.cancel();  // once more changes nothing
  EXPECT_EQ(collect(waiting)[0].finished, FinishReason::kCancelled);
  EXPECT_EQ(collect(running)[0].finished, FinishReason::kCancelled);
  GenerationStream family = engine->submit({.prompt_ids = some_ids(50, 2), .max_tokens = 10, .n = 2});
  family.cancel();  // somewhere between the queue and its first token
  for (const Collected& text : collect(family, 2)) EXPECT_EQ(text.finished, FinishReason::kCancelled);
  EXPECT_EQ(collect(second)[0].finished, FinishReason::kLength) << "not touched";
  second.cancel();  // finished
  { GenerationStream dropped = engine->submit(endless()); }
  engine->drain();
  EngineStats stats = engine->stats();
  EXPECT_EQ(stats.finished, 1);
  EXPECT_EQ(stats.cancelled, 4);
  EXPECT_EQ(stats.kv_blocks_used, 0);
}

TEST(EngineFaults, StreamsOutliveTheEngine) {
  auto engine = test_engine({.limits = fake_limits(), .step_seconds = 0.001});
  std::vector<GenerationStream> streams;
  for (int i = 0; i < 30; ++i) streams.push_back(engine->submit(endless()));
  std::thread reader([&] { EXPECT_NE(collect(streams[0])[0].finished, FinishReason::kNone); });
  GenerationEvent event;
  ASSERT_TRUE(streams[1].next(event));
  engine.reset();
  reader.join();
  for (size_t i = 1; i < streams.size(); ++i) {
    Collected text = collect(streams[i])[0];
    EXPECT_TRUE(text.finished == FinishReason::kCancelled || text.finished == FinishReason::kLength);
    streams[i].cancel();
  }
}

TEST(EngineFaults, DeadlinesEndWaitingAndRunningRequests) {
  auto engine = test_engine({.limits = fake_limits(), .step_seconds = 0.004}, {.max_sequences = 1});
  GenerationRequest hurried = endless();
  hurried.timeout_seconds = 0.05;
  GenerationStream running = engine->submit(hurried), waiting = engine->submit(hurried);
  GenerationStream patient = engine->submit(endless(5));
  Collected text = collect(running)[0];
  EXPECT_EQ(text.finished, FinishReason::kTimeout);
  EXPECT_FALSE(text.ids.empty()) << "what was ready is delivered";
  Collected late = collect(waiting)[0];
  EXPECT_EQ(late.finished, FinishReason::kTimeout);
  for (const Collected& ended : {text, late}) {
    const std::string made = fmt::format(" s with {} of {} tokens generated", ended.ids.size(), hurried.max_tokens);
    EXPECT_EQ(ended.kind, ErrorKind::kLate);
    EXPECT_TRUE(ended.error.starts_with("timeout_seconds of 0.05 exceeded after ")) << ended.error;
    EXPECT_NE(ended.error.find(made), std::string::npos) << ended.error;
  }
  EXPECT_EQ(collect(patient)[0].ids.size(), 5u);
}

class EngineDeviceFaults : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(EngineDeviceFaults, EndEveryRequestWithTheReason) {
  auto [forward, wait] = GetParam();
  auto engine = test_engine({.limits = fake_limits(), .fail_step = forward, .fail_wait = wait, .step_seconds = 0.001},
                            {.max_sequences = 2});
  std::vector<GenerationStream> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(engine->submit(endless()));
  for (GenerationStream& stream : streams) {
    Collected text = collect(stream)[0];
    EXPECT_EQ(text.finished, FinishReason::kError);
    EXPECT_EQ(text.kind, ErrorKind::kDevice);
    EXPECT_NE(text.error.find("device lost"), std::string::npos) << text.error;
  }
  engine->drain();
  expect_refused(*engine, endless(), "device lost", ErrorKind::kDevice);
  EXPECT_EQ(engine->stats().running, 0);
}

INSTANTIATE_TEST_SUITE_P(Steps, EngineDeviceFaults,
                         testing::Values(std::pair(1, 0), std::pair(7, 0), std::pair(0, 1), std::pair(0, 9)));

TEST(EngineFaults, ThreadsSubmitReadCancelAndLeave) {
  FakeOptions fake{.limits = fake_limits(24)};
  auto engine = test_engine(fake, {.max_waiting = 1000});
  std::atomic<int64_t> finished = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 25; ++i) {
        GenerationRequest request = some_request(t * 100 + i);
        GenerationStream stream = engine->submit(request);
        if (i % 5 == 4) continue;  // dropped at once
        GenerationEvent event;
        if (i % 5 == 3 && stream.next(event)) stream.cancel();
        std::vector<Collected> texts = collect(stream, request.n);
        if (i % 5 > 2) continue;
        EXPECT_EQ(texts[0].ids, alone(request, 0, fake.limits).ids);
        ++finished;
      }
    });
  std::thread watcher([&] {
    while (finished < 60) EXPECT_GE(engine->stats().steps, 0), std::this_thread::yield();
  });
  for (std::thread& thread : threads) thread.join();
  watcher.join();
  engine->drain();
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
}

}  // namespace
}  // namespace octet
