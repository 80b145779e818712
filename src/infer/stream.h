// State shared by the engine's thread and the reader of a request: one pending event per sequence.
//
// Publishing merges into the pending event, so it never blocks and memory is bounded by the request's own output. No
// thread holds two of the engine's mutexes (stream, mailbox, statistics) at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "octet/engine.h"

namespace octet {

class Mailbox;

void clear(GenerationEvent& event);  // keeps the buffers and the sample

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

// Queue from other threads to the engine's: they post requests and cancellations, the engine takes them between steps.
//
// Shared with streams, so it may outlive the engine: once closed it refuses requests and drops cancellations.
struct Request;

class Mailbox {
 public:
  explicit Mailbox(int64_t max_waiting);
  ~Mailbox();

  // From any thread. A refused post() leaves the request with the caller and sets the reason.
  bool post(std::unique_ptr<Request>& request, std::string& refusal);
  void cancel(int64_t ticket);
  void stop();   // asks the engine to shut down
  void drain();  // waits until every request posted has ended

  // From the engine's thread. take() waits for input, at most `seconds`, and returns false after stop().
  bool take(std::vector<std::unique_ptr<Request>>& requests, std::vector<int64_t>& cancelled, double seconds);
  void admitted(int64_t texts);           // this many sequences left the queue
  void ended();                           // a request has ended
  void close(const std::string& reason);  // refuses every later request with `reason`

 private:
  const int64_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable posted_, drained_;
  // Under the mutex:
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<int64_t> cancelled_;
  int64_t waiting_ = 0;  // sequences posted and not admitted
  int64_t live_ = 0;     // requests posted and not ended
  bool stop_ = false;
  std::string closed_;
};

}  // namespace octet
