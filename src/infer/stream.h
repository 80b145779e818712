// What stands between the engine's thread and the reader of a request: one growing event a text.
//
// The engine publishes, the reader takes; publishing merges into what was not taken yet, so it never waits and memory
// is bounded by the request's own output. Of the engine's mutexes (here, the mailbox's, the statistics') no thread ever
// holds two.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "octet/engine.h"

namespace octet {

class Mailbox;

class StreamState {
 public:
  StreamState(int64_t texts, int64_t ticket, std::shared_ptr<Mailbox> mailbox);

  // The reader's end.
  bool take(GenerationEvent& event, bool wait);
  void cancel();
  RequestTimes times() const;

  // The engine's end; `seconds` since the request was submitted.
  void publish(const GenerationEvent& news, double seconds);
  void refuse(FinishReason reason, const std::string& error);  // one event, of text 0, ends them all
  void started(double seconds, int64_t prompt_tokens, int64_t cached_tokens);
  void preempted();

 private:
  struct Text {
    GenerationEvent pending;
    bool ready = false;
  };

  const int64_t ticket_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::atomic<bool> cancelled_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex:
  std::vector<Text> texts_;
  std::vector<size_t> ready_;  // texts with something pending, in the order it came
  int64_t open_ = 0;           // texts not finished
  bool reader_waits_ = false;
  RequestTimes times_;
};

}  // namespace octet
