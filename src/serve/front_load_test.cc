// How many requests are refused, at known shares of what an engine gets through: a front over an engine of the test's
// own, in the test's own time.
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "infer/stream.h"
#include "serve/front.h"
#include "serve/testing/eventually.h"

namespace octet::serve {
namespace {

constexpr int64_t kSequences = 16, kAhead = 16, kPrompt = 20, kContext = 131'072;
constexpr double kStep = 0.02, kCapacity = kSequences / (50 * kStep);  // texts of 50 tokens on average

// A token of each running text a step; texts end by themselves behind 20 to 80 tokens.
class SteppedEngine final : public Engine {
 public:
  GenerationStream submit(GenerationRequest request) override {
    auto stream = std::make_shared<StreamState>(1, ++ticket_, mailbox_, std::move(request.on_news));
    const int64_t length = std::min(std::uniform_int_distribution<int64_t>(20, 80)(random_), request.max_tokens);
    const std::lock_guard lock(mutex_);
    waiting_.push_back({stream, length});
    return GenerationStream(stream);
  }
  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  const EngineOptions& options() const override { return options_; }
  void drain() override {}
  int64_t context() const override { return kContext; }
  int64_t vocab_size() const override { return 100; }
  const std::vector<int32_t>& end_tokens() const override { return ends_; }

  // The number of events that it has given.
  int64_t step() {
    std::vector<std::pair<std::shared_ptr<StreamState>, GenerationEvent>> news;
    {
      const std::lock_guard lock(mutex_);
      while (std::ssize(running_) < kSequences && !waiting_.empty()) {
        running_.push_back(waiting_.front()), waiting_.pop_front();
        stats_.prompt_tokens += kPrompt;
        news.push_back({running_.back().stream, {.ids = {1}}});
      }
      for (Text& text : running_) {
        ++stats_.generated_tokens;
        if (--text.left > 0) continue;
        GenerationEvent end{.ids = std::vector<int32_t>(static_cast<size_t>(text.length - 1), 1)};
        end.finished = FinishReason::kStop;
        news.push_back({text.stream, end});
      }
      std::erase_if(running_, [](const Text& text) { return text.left <= 0; });
    }
    for (const auto& [stream, event] : news) stream->publish(event, 1);
    return std::ssize(news);
  }
  int64_t waiting() const {
    const std::lock_guard lock(mutex_);
    return std::ssize(waiting_);
  }

 private:
  struct Text {
    std::shared_ptr<StreamState> stream;
    int64_t length = 0, left = length;
  };
  const EngineOptions options_ = {};
  const std::vector<int32_t> ends_ = {0};
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>(1'000'000, 1'000'000'000);
  mutable std::mutex mutex_;
  std::deque<Text> waiting_;
  std::vector<Text> running_;
  EngineStats stats_;
  std::mt19937 random_{1};
  int64_t ticket_ = 0;
};

struct Counts {
  std::atomic<int64_t> events = 0, ended = 0, refused = 0;
};

class CountedJob final : public Job {
 public:
  explicit CountedJob(Counts& counts) : counts_(counts) {
    // Without max_tokens a chat may go on to the context's end.
    prompts.push_back({.prompt_ids = std::vector<int32_t>(kPrompt, 1), .max_tokens = kContext - kPrompt});
  }
  void on_event(size_t, const GenerationEvent&) override { ++counts_.events; }
  void on_end(const std::vector<RequestTimes>&) override { ++counts_.ended; }
  void on_refusal(const Refusal&) override { ++counts_.refused; }

 private:
  Counts& counts_;
};

class FrontLoad : public testing::Test {
 protected:
  // Seconds of steps, with requests as a Poisson process of so many a second.
  void run(double seconds, double rate) {
    std::exponential_distribution<double> gap(rate > 0 ? rate : 1);
    double due = rate > 0 ? time_ + gap(random_) : 1e300;
    for (const double until = time_ + seconds; time_ < until; time_ = time_ + kStep) {
      for (; due <= time_; due += gap(random_)) submit();
      settle();
      given_ += engine_.step();
      settle();
    }
  }
  void submit() {
    ++asked_;
    // What a request hears before its body is read.
    if (front_->full()) {
      ++counts_.refused;
    } else {
      front_->submit(std::make_shared<CountedJob>(counts_), kPrompt);
    }
  }
  // Until the front's thread has heard of everything and has nothing more to give to the engine.
  void settle() {
    ASSERT_TRUE(eventually([&] {
      return counts_.events == given_ && (front_->waiting() == 0 || engine_.waiting() >= kAhead);
    })) << counts_.events
        << " of " << given_ << " events, " << front_->waiting() << " wait";
  }
  void three_quiet_requests() {
    for (int i = 0; i < 3; ++i) submit(), run(5, 0);
    ASSERT_EQ(counts_.ended, 3);
  }
  void start(FairQueue::Bounds bounds) {
    front_ = std::make_unique<Front>(
        engine_, std::vector<ApiKey>{},
        FrontOptions{
            .queue = bounds, .ahead = kAhead, .ahead_most = kSequences, .sequences = kSequences, .clock = [this] {
              return time_.load();
            }});
  }
  double refused() const { return static_cast<double>(counts_.refused) / static_cast<double>(asked_); }

  std::atomic<double> time_ = 1000;
  SteppedEngine engine_;
  Counts counts_;
  int64_t asked_ = 0, given_ = 0;
  std::mt19937 random_{7};
  std::unique_ptr<Front> front_;
};

TEST_F(FrontLoad, NoneOfTwentyFourAtOnceIsRefusedBehindThreeQuietOnes) {
  start({.requests = 8});  // sixteen run, the others wait
  three_quiet_requests();
  for (int i = 0; i < 24; ++i) submit();
  EXPECT_EQ(counts_.refused, 0);
  submit();
  EXPECT_EQ(counts_.refused, 1);
  run(10, 0);
  EXPECT_EQ(counts_.ended, 27);
}

TEST_F(FrontLoad, NoneIsRefusedBelowTheCapacity) {
  start({.wait = 5});
  three_quiet_requests();
  run(180, 0.9 * kCapacity);
  EXPECT_GT(asked_, 2300);
  EXPECT_EQ(counts_.refused, 0);
}

TEST_F(FrontLoad, AboveTheCapacityOnlyWhatIsTooMuchIsRefused) {
  start({.wait = 5});
  three_quiet_requests();
  run(180, 1.2 * kCapacity);
  EXPECT_GT(refused(), 0.08);  // a sixth is too much, behind the 25 s in which the queue fills
  EXPECT_LE(refused(), 0.22);
  // A minute later nothing is left of it, whatever the engine did when it was slow.
  run(60, 0);
  EXPECT_FALSE(front_->full());
  EXPECT_EQ(counts_.ended + counts_.refused, asked_);
}

TEST_F(FrontLoad, SixtyUsersWhoWaitForTheirAnswersAreServed) {
  start({});
  three_quiet_requests();
  for (int step = 0; step < 9000; ++step) {
    while (asked_ - counts_.ended - counts_.refused < 60) submit();
    run(kStep, 0);
  }
  EXPECT_GT(asked_, 2000);
  EXPECT_EQ(counts_.refused, 0);
}

}  // namespace
}  // namespace octet::serve
