// State shared by the engine's thread and the reader of a request: one pending event per sequence.
//
// Publishing merges into the pending event, so it never blocks and memory is bounded by the request's own output. No
// thread holds two of the engine's mutexes (stream, mailbox, statistics) at once.
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

  // Called by the reader.
  bool take(GenerationEvent& event, bool wait);
  void cancel();
  RequestTimes times() const;

  // Called by the engine; `seconds` since the request was submitted.
  void publish(const GenerationEvent& news, double seconds);
  void refuse(FinishReason reason, const std::string& error);  // ends all sequences by one event of sample 0
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
  std::vector<size_t> ready_;  // sequences with a pending event, in order of arrival
  int64_t open_ = 0;           // sequences not finished
  bool reader_waits_ = false;
  RequestTimes times_;
};

}  // namespace octet
