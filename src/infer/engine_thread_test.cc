// What engines have in common, by one that computes nothing: whose fault an error is, and how requests end.
#include "infer/engine_thread.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <stdexcept>

namespace octet {
namespace {

using Hook = std::function<void()>;

// A request is over by the step after it came. `read` and `step` may throw.
class IdleEngine final : public EngineThread {
 public:
  explicit IdleEngine(Hook read, Hook step = {}, const EngineOptions& options = {})
      : EngineThread(options, nullptr), read_(std::move(read)), step_(std::move(step)) {
    start();
  }
  ~IdleEngine() override { stop(); }
  int64_t context() const override { return 8; }
  int64_t vocab_size() const override { return 8; }
  const std::vector<int32_t>& end_tokens() const override { return no_ids_; }

 private:
  std::unique_ptr<Request> read(GenerationRequest asked) const override {
    if (read_) read_();
    auto request = std::make_unique<Request>();
    request->sequences.resize(1);
    request->sequences[0].request = request.get();
    request->open = request->waiting = 1;
    request->prompt_tokens = std::ssize(asked.prompt_ids);
    request->asked = std::move(asked);
    return request;
  }
  void admit(Request& request) override { waiting_.push_back(&request); }
  void leave(RequestSequence& text) override { std::erase(waiting_, text.request); }
  void step() override {
    if (step_ && !waiting_.empty()) step_();
    while (!waiting_.empty()) end(*waiting_.front(), FinishReason::kStop);
    deliver();
  }

  Hook read_, step_;
  std::vector<Request*> waiting_;
  const std::vector<int32_t> no_ids_;
};

GenerationEvent ask(Engine& engine) {
  GenerationStream stream = engine.submit({.prompt_ids = {1}});
  GenerationEvent event;
  EXPECT_TRUE(stream.next(event));
  return event;
}

ErrorKind kind_when_reading_throws(const Hook& read) {
  IdleEngine engine(read);
  const GenerationEvent event = ask(engine);
  EXPECT_EQ(event.finished, FinishReason::kError);
  EXPECT_NE(event.error.find("seven"), std::string::npos) << event.error;
  EXPECT_EQ(engine.stats().failed, 1);
  return event.error_kind;
}

TEST(EngineThread, AnErrorIsTheClientsWhereReadingTheRequestFindsItInvalid) {
  const auto kind = [](ErrorCode code) {
    return kind_when_reading_throws([code] { fail(code, "it is {}", "seven"); });
  };
  EXPECT_EQ(kind(ErrorCode::kInvalidArgument), ErrorKind::kInvalid);
  EXPECT_EQ(kind(ErrorCode::kInternal), ErrorKind::kInternal);
  EXPECT_EQ(kind(ErrorCode::kUnsupported), ErrorKind::kInternal);
  EXPECT_EQ(kind(ErrorCode::kIo), ErrorKind::kInternal);
  EXPECT_EQ(kind_when_reading_throws([] { throw RequestError(ErrorKind::kTooLong, "seven"); }), ErrorKind::kTooLong);
  EXPECT_EQ(kind_when_reading_throws([] { throw std::runtime_error("seven"); }), ErrorKind::kInternal);
}

TEST(EngineThread, AnErrorOfAStepIsTheDevicesWhateverItsCode) {
  IdleEngine engine({}, [] { fail(ErrorCode::kInvalidArgument, "it is {}", "seven"); });
  for (int i = 0; i < 2; ++i) {  // the one that it computes, and a later one
    const GenerationEvent event = ask(engine);
    EXPECT_EQ(event.finished, FinishReason::kError);
    EXPECT_EQ(event.error_kind, ErrorKind::kDevice);
    EXPECT_EQ(event.error, "the engine failed: it is seven");
  }
  engine.drain();
  EXPECT_TRUE(engine.stats().broken);
  EXPECT_EQ(engine.stats().failed, 2);
}

TEST(EngineThread, TheQueueIsBoundedAndItsRoomComesBack) {
  std::promise<void> gate, begun;
  Hook step = [&, open = gate.get_future().share(), first = true]() mutable {
    if (std::exchange(first, false)) begun.set_value();
    open.wait();
  };
  IdleEngine engine({}, std::move(step), {.max_waiting = 2});
  std::vector<GenerationStream> streams;
  streams.push_back(engine.submit({.prompt_ids = {1}}));
  begun.get_future().wait();
  streams.push_back(engine.submit({.prompt_ids = {1}}));
  EXPECT_EQ(ask(engine).error_kind, ErrorKind::kQueueFull);
  gate.set_value();
  engine.drain();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ask(engine).finished, FinishReason::kStop);
    engine.drain();
  }
  EXPECT_EQ(engine.stats().finished, 5);
  EXPECT_EQ(engine.stats().failed, 1);
}

}  // namespace
}  // namespace octet
