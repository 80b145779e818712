#include "infer/mailbox.h"

#include <fmt/format.h>

#include <chrono>

#include "infer/request.h"

namespace octet {

Mailbox::Mailbox(int64_t max_waiting) : max_waiting_(max_waiting) {}
Mailbox::~Mailbox() = default;

bool Mailbox::post(std::unique_ptr<Request>& request, std::string& refusal) {
  {
    std::lock_guard lock(mutex_);
    if (!closed_.empty()) {
      refusal = closed_;
      return false;
    }
    auto texts = static_cast<int64_t>(request->sequences.size());
    if (waiting_ + texts > max_waiting_) {
      refusal = fmt::format("the queue is full: {} of {} texts wait; try again later", waiting_, max_waiting_);
      return false;
    }
    waiting_ += texts;
    ++live_;
    requests_.push_back(std::move(request));
  }
  posted_.notify_one();
  return true;
}

void Mailbox::cancel(int64_t ticket) {
  {
    std::lock_guard lock(mutex_);
    if (!closed_.empty()) return;
    cancelled_.push_back(ticket);
  }
  posted_.notify_one();
}

void Mailbox::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  posted_.notify_one();
}

void Mailbox::drain() {
  std::unique_lock lock(mutex_);
  drained_.wait(lock, [this] { return live_ == 0; });
}

bool Mailbox::take(std::vector<std::unique_ptr<Request>>& requests, std::vector<int64_t>& cancelled, double seconds) {
  requests.clear();
  cancelled.clear();
  std::unique_lock lock(mutex_);
  if (seconds > 0)
    posted_.wait_for(lock, std::chrono::duration<double>(seconds),
                     [this] { return stop_ || !requests_.empty() || !cancelled_.empty(); });
  std::swap(requests, requests_);
  std::swap(cancelled, cancelled_);
  return !stop_;
}

void Mailbox::admitted(int64_t texts) {
  std::lock_guard lock(mutex_);
  waiting_ -= texts;
}

void Mailbox::ended() {
  std::lock_guard lock(mutex_);
  if (--live_ == 0) drained_.notify_all();
}

void Mailbox::close(const std::string& reason) {
  std::lock_guard lock(mutex_);
  closed_ = reason;
  cancelled_.clear();
}

int64_t Mailbox::waiting() const {
  std::lock_guard lock(mutex_);
  return waiting_;
}

}  // namespace octet
