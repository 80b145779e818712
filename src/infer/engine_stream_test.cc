// What a server needs of streams and the engine: news without a waiting thread, what ended a sequence, special tokens,
// the engine's life seen from outside.
#include <barrier>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "base/threads.h"
#include "infer/testing/engine_test.h"
#include "io/tokenizer.h"

namespace octet {
namespace {

#ifdef OCTET_SANITIZED
constexpr bool kThreads = false;  // under the thread sanitizer parallel_for is serial
#else
constexpr bool kThreads = true;
#endif

GenerationRequest greedy(int64_t tokens) {
  return {.prompt_ids = {1, 2}, .sampling = {.temperature = 0}, .max_tokens = tokens, .ignore_eos = true};
}

// Numbers of the streams that have news, in order.
class News {
 public:
  std::function<void()> of(size_t stream) {
    return [this, stream] {
      {
        std::lock_guard lock(mutex_);
        streams_.push_back(stream);
        ++calls_;
      }
      changed_.notify_one();
    };
  }
  size_t next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !streams_.empty(); });
    const size_t stream = streams_.front();
    streams_.pop_front();
    return stream;
  }
  int64_t calls() {
    std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<size_t> streams_;
  int64_t calls_ = 0;
};

TEST(EngineStream, OneThreadReadsManyStreamsByTheirNews) {
  FakeOptions fake{.limits = fake_limits()};
  News news;
  auto engine = test_engine(fake);
  std::vector<GenerationRequest> requests;
  std::vector<GenerationStream> streams;
  for (uint64_t i = 0; i < 60; ++i) {
    GenerationRequest request = some_request(i);
    request.n = 1;
    requests.push_back(request);
    request.on_news = news.of(i);
    streams.push_back(engine->submit(request));
  }
  std::vector<Collected> texts(streams.size());
  for (size_t open = streams.size(); open > 0;) {
    const size_t i = news.next();
    for (GenerationEvent event; streams[i].try_next(event);) {
      texts[i].ids.insert(texts[i].ids.end(), event.ids.begin(), event.ids.end());
      if (event.finished != FinishReason::kNone) --open;
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i].ids, alone(requests[i], 0, fake.limits).ids);
}

TEST(EngineStream, NewsIsToldOnceUntilItIsTaken) {
  News news;
  auto engine = test_engine({.limits = fake_limits()});
  GenerationRequest request = greedy(30);
  request.n = 3;
  request.on_news = news.of(0);
  GenerationStream stream = engine->submit(request);
  engine->drain();
  EXPECT_EQ(news.calls(), 1) << "nobody has read";
  GenerationEvent event;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(stream.try_next(event));
  EXPECT_FALSE(stream.try_next(event));

  request = greedy(-1);  // refused: told inside of submit()
  request.on_news = news.of(1);
  GenerationStream refused = engine->submit(request);
  EXPECT_EQ(news.calls(), 2);
  EXPECT_TRUE(refused.try_next(event));
  EXPECT_EQ(event.error_kind, ErrorKind::kInvalid);
}

TEST(EngineStream, ADroppedStreamIsNotTold) {
  News news;
  auto engine = test_engine({.limits = fake_limits()}, {.max_sequences = 1});
  std::mutex gate;
  std::unique_lock closed(gate);
  GenerationRequest blocker = greedy(3), waiting = greedy(5);
  blocker.mask = [&](int64_t, std::span<const int32_t>, std::span<uint32_t>) { std::lock_guard open(gate); };
  waiting.on_news = news.of(0);
  GenerationStream first = engine->submit(blocker);
  { GenerationStream dropped = engine->submit(waiting); }
  closed.unlock();
  engine->drain();
  EXPECT_EQ(news.calls(), 0);
}

TEST(EngineStream, TheLastEventSaysWhatStoppedTheText) {
  FakeOptions fake{.limits = fake_limits()};
  auto engine = test_engine(fake);
  const GenerationRequest request = greedy(20);
  const Collected whole = alone(request, 0, fake.limits);
  GenerationRequest by_string = request;
  by_string.stop = {"not there", whole.text.substr(5, 3)};
  Collected text = collect_one(engine->submit(by_string));
  EXPECT_EQ(text.finished, FinishReason::kStop);
  EXPECT_EQ(text.stop, by_string.stop[1]);
  EXPECT_EQ(text.stop_id, -1);
  EXPECT_EQ(text.text, whole.text.substr(0, whole.text.find(text.stop)));
  // Stop strings count behind the first min_tokens.
  GenerationRequest later = by_string;
  later.min_tokens = std::ssize(text.ids) + 2;
  const Collected kept = collect_one(engine->submit(later));
  EXPECT_GT(std::ssize(kept.ids), later.min_tokens);
  EXPECT_TRUE(kept.text.starts_with(whole.text.substr(0, static_cast<size_t>(later.min_tokens))));
  by_string.include_stop = true;
  text = collect_one(engine->submit(by_string));
  EXPECT_EQ(text.text, whole.text.substr(0, whole.text.find(text.stop)) + text.stop);

  GenerationRequest by_id = request;
  by_id.stop_ids = {whole.ids[4]};
  text = collect_one(engine->submit(by_id));
  EXPECT_EQ(text.finished, FinishReason::kStop);
  EXPECT_EQ(text.stop, "");
  EXPECT_EQ(text.stop_id, whole.ids[4]);
  EXPECT_EQ(collect_one(engine->submit(request)).stop_id, -1) << "ended by its length";
}

TEST(EngineStream, ShowsSpecialTokensOnRequest) {
  auto tokenizer = parse_tokenizer_json(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    "added_tokens": [{"id": 2, "content": "[TOOL_CALLS]", "special": true}], "pre_tokenizer": {"type": "ByteLevel"},
    "decoder": {"type": "ByteLevel"}})",
                                        "test");
  EngineLoop engine(
      {.runner = std::make_unique<FakeRunner>(FakeOptions{.limits = fake_limits()}), .tokenizer = std::move(tokenizer)},
      {});
  GenerationRequest request = greedy(4);
  request.prompt_ids = {0};
  request.mask = [](int64_t, std::span<const int32_t> generated, std::span<uint32_t> allowed) {
    allowed[0] = generated.size() == 1 ? 4 : 1;
    allowed[1] = 0;
  };
  EXPECT_EQ(collect_one(engine.submit(request)).text, "aaa");
  request.skip_special_tokens = false;
  EXPECT_EQ(collect_one(engine.submit(request)).text, "a[TOOL_CALLS]aa");
}

// Each callback waits until all of them run: one after another they would wait for ever. `generated` is up to date.
TEST(EngineStream, MasksOfAStepAreMadeAtOnce) {
  const int threads = thread_count();
  set_thread_count(4);
  FakeOptions fake{.limits = fake_limits()};
  auto engine = test_engine(fake);
  std::barrier all(4);
  GenerationRequest request = greedy(6);
  request.n = 4;
  request.mask = [&](int64_t sample, std::span<const int32_t> generated, std::span<uint32_t> allowed) {
    if (kThreads) all.arrive_and_wait();
    std::ranges::fill(allowed, 0);
    allowed[0] = 1u << (8 * static_cast<uint32_t>(sample) + static_cast<uint32_t>(generated.size()));
  };
  GenerationStream stream = engine->submit(request);
  const std::vector<Collected> texts = collect(stream, 4);
  for (int32_t i = 0; i < 4; ++i)
    for (int32_t t = 0; t < 6; ++t) EXPECT_EQ(texts[static_cast<size_t>(i)].ids.at(static_cast<size_t>(t)), 8 * i + t);
  set_thread_count(threads);
}

TEST(EngineStream, StatsTellWhetherStepsGoOn) {
  auto engine = test_engine({.limits = fake_limits()});
  EXPECT_FALSE(engine->stats().in_step);
  const double before = engine->stats().since_step;
  EXPECT_GE(engine->stats().since_step, before) << "no step yet: since the start";
  std::vector<EngineStats> seen;
  GenerationRequest request = greedy(3);
  request.mask = [&](int64_t, std::span<const int32_t>, std::span<uint32_t>) { seen.push_back(engine->stats()); };
  collect_one(engine->submit(request));
  engine->drain();
  ASSERT_GE(seen.size(), 3u);
  for (const EngineStats& stats : seen) EXPECT_TRUE(stats.in_step);
  const EngineStats after = engine->stats();
  EXPECT_GE(after.since_step, 0);
  EXPECT_LE(seen[2].since_step, seen[0].since_step + after.seconds) << "results arrived in between";
}

}  // namespace
}  // namespace octet
