// Requests between server and engine: refused ones, failing ones, and the end of either side.
#include "serve/front.h"

#include <gtest/gtest.h>

#include <future>

#include "infer/testing/engine_test.h"

namespace octet::serve {
namespace {

// Notes how it ended: "end", or the reason of a refusal.
class NotedJob final : public Job {
 public:
  explicit NotedJob(GenerationRequest request) { prompts.push_back(std::move(request)); }
  void on_event(size_t, const GenerationEvent& event) override {
    failed = event.finished == FinishReason::kError;
    if (!event.ids.empty() && !std::exchange(begun_, true)) first.set_value();
  }
  void on_end(const std::vector<RequestTimes>&) override { note("end"); }
  void on_refusal(const Refusal& refusal) override { note(refusal.reason); }

  std::promise<std::string> ended;
  std::promise<void> first;  // token
  bool failed = false;

 private:
  void note(const std::string& how) {
    if (!std::exchange(noted_, true)) ended.set_value(how);
  }
  bool noted_ = false, begun_ = false;
};

std::shared_ptr<NotedJob> submit(Front& front, GenerationRequest request) {
  const auto tokens = static_cast<int64_t>(request.prompt_ids.size());
  auto job = std::make_shared<NotedJob>(std::move(request));
  job->key = "k";
  front.submit(job, tokens);
  return job;
}

GenerationRequest texts(int64_t n, int64_t prompt, int64_t max_tokens = 4) {
  return {.prompt_ids = some_ids(prompt, 1), .max_tokens = max_tokens, .n = n, .ignore_eos = true};
}

// Its texts end with one error; the key gets their places back.
TEST(Front, ATextThatFailsEndsItsRequest) {
  const auto engine = test_engine({.limits = fake_limits()});
  Front front(*engine, {{.name = "k", .limits = {.texts = 2}}}, {});
  for (int i = 0; i < 3; ++i) {
    const auto job = submit(front, texts(2, 65));  // the context is 64
    EXPECT_EQ(job->ended.get_future().get(), "end");
    EXPECT_TRUE(job->failed);
  }
  EXPECT_EQ(submit(front, texts(2, 3))->ended.get_future().get(), "end");
}

TEST(Front, TokensThatTheContextHasNoRoomForAreNotCharged) {
  const auto engine = test_engine({.limits = fake_limits()});
  Front front(*engine, {{.name = "k", .limits = {.tokens_per_minute = 64}}}, {.queue = {.tokens = 64}});
  EXPECT_EQ(submit(front, texts(1, 60, std::numeric_limits<int32_t>::max()))->ended.get_future().get(), "end");
}

TEST(Front, WhatComesAfterTheEndIsRefused) {
  const auto engine = test_engine({.limits = fake_limits()});
  Front front(*engine, {}, {});
  front.refuse_all({503, "shutdown", "the server is shutting down", 1});
  EXPECT_EQ(submit(front, texts(1, 3))->ended.get_future().get(), "shutdown");
}

TEST(Front, WhatWaitsInsideOfTheEngineIsPartOfTheQueue) {
  const auto engine = test_engine({.limits = fake_limits()}, {.max_sequences = 1});
  Front front(*engine, {}, {.queue = {.requests = 1}, .sequences = 1});
  std::promise<void> running, open;
  GenerationRequest blocker = texts(1, 3, 1);
  blocker.mask = [&](int64_t, std::span<const int32_t>, std::span<uint32_t>) {
    running.set_value();
    open.get_future().wait();
  };
  const auto runs = submit(front, blocker);
  running.get_future().wait();
  const auto waits = submit(front, texts(1, 3));
  while (front.waiting() > 0) std::this_thread::yield();  // until it is inside
  EXPECT_EQ(submit(front, texts(1, 3))->ended.get_future().get(), "queue");
  open.set_value();
  EXPECT_EQ(waits->ended.get_future().get(), "end");
  EXPECT_EQ(submit(front, texts(1, 3))->ended.get_future().get(), "end");
}

TEST(Front, TheEngineOutlivesItsFront) {
  const auto engine = test_engine({.limits = fake_limits()});
  for (int i = 0; i < 50; ++i) {
    Front front(*engine, {}, {});
    std::vector<std::shared_ptr<NotedJob>> jobs;
    for (int text = 0; text < 4; ++text) jobs.push_back(submit(front, texts(2, 3, 50)));
    jobs.front()->first.get_future().wait();
  }
  engine->drain();
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
}

}  // namespace
}  // namespace octet::serve
