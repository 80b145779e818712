// State shared by the engine's thread and the reader of a request: one pending event per sequence.
//
// Publishing merges into the pending event, so it never blocks and memory is bounded by the request's own output. No
// thread holds two of the engine's mutexes (stream, mailbox, statistics) at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
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
  StreamState(int64_t texts, int64_t ticket, std::shared_ptr<Mailbox> mailbox, std::function<void()> on_news = {});

  // Called by the reader.
  bool take(GenerationEvent& event, bool wait);
  void cancel();
  void abandon();  // cancels; on_news is not called any more
  RequestTimes times() const;

  // Called by the engine; `seconds` since the request was submitted.
  void publish(const GenerationEvent& news, double seconds);
  void refuse(FinishReason reason, ErrorKind kind, const std::string& error);  // ends all by one event of sample 0
  void started(double seconds, int64_t prompt_tokens, int64_t cached_tokens);
  void preempted();

 private:
  struct Text {
    GenerationEvent pending;
    bool ready = false;
  };

  bool notify();  // under the mutex: whether on_news is to be called

  const int64_t ticket_;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::function<void()> on_news_;
  std::atomic<bool> cancelled_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under the mutex:
  std::vector<Text> texts_;
  std::vector<size_t> ready_;  // sequences with a pending event, in order of arrival
  int64_t open_ = 0;           // sequences not finished
  bool reader_waits_ = false;
  bool abandoned_ = false;
  bool told_ = false;  // on_news was called and the reader has not taken everything since
  RequestTimes times_;
};

// Queue from other threads to the engine's: they post requests and cancellations, the engine takes them between steps.
//
// Shared with streams, so it may outlive the engine: once closed it refuses requests and drops cancellations.
struct Request;

class Mailbox {
 public:
  Mailbox(int64_t max_texts, int64_t max_tokens);
  ~Mailbox();

  struct Refusal {
    ErrorKind kind = ErrorKind::kNone;
    std::string reason = {};
  };
  // From any thread. A refused post() leaves the request with the caller.
  Refusal post(std::unique_ptr<Request>& request);
  void cancel(int64_t ticket);
  void stop();   // asks the engine to shut down
  void drain();  // waits until every request posted has ended

  // From the engine's thread. take() waits for input, at most `seconds`, and returns false after stop().
  bool take(std::vector<std::unique_ptr<Request>>& requests, std::vector<int64_t>& cancelled, double seconds);
  void admitted(int64_t texts, int64_t tokens);           // these left the queue
  void ended();                                           // a request has ended
  void close(ErrorKind kind, const std::string& reason);  // refuses every later request

 private:
  const int64_t max_texts_, max_tokens_;
  mutable std::mutex mutex_;
  std::condition_variable posted_, drained_;
  // Under the mutex:
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<int64_t> cancelled_;
  int64_t texts_ = 0, tokens_ = 0;  // sequences posted and not admitted, and prompt tokens of their requests
  int64_t live_ = 0;                // requests posted and not ended
  bool stop_ = false;
  Refusal closed_;  // kNone: open
};

}  // namespace octet
