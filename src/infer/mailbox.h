// Queue from other threads to the engine's: they post requests and cancellations, the engine takes them between steps.
//
// Shared with streams, so it may outlive the engine: once closed it refuses requests and drops cancellations.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace octet {

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
  int64_t waiting() const;

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
