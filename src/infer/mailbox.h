// How other threads reach the engine's: requests and cancellations go in, the engine's thread takes them between steps.
//
// Streams share it, so it may outlive the engine: once closed it refuses requests and drops cancellations.
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

  // Of any thread. post() leaves the request with the caller and says why when it is refused.
  bool post(std::unique_ptr<Request>& request, std::string& refusal);
  void cancel(int64_t ticket);
  void stop();   // the engine is to end
  void drain();  // waits until every request posted has ended

  // Of the engine's thread. take() waits for something to do, at most `seconds`, and returns false when told to stop.
  bool take(std::vector<std::unique_ptr<Request>>& requests, std::vector<int64_t>& cancelled, double seconds);
  void admitted(int64_t texts);           // so many no longer wait
  void ended();                           // a request
  void close(const std::string& reason);  // from now on every request is refused with it
  int64_t waiting() const;

 private:
  const int64_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable posted_, drained_;
  // Under the mutex:
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<int64_t> cancelled_;
  int64_t waiting_ = 0;  // texts posted and not admitted
  int64_t live_ = 0;     // requests posted and not ended
  bool stop_ = false;
  std::string closed_;
};

}  // namespace octet
