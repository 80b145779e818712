#include "serve/http_reply.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <utility>

namespace octet::serve {

struct HttpReply::Handle {
  explicit Handle(std::shared_ptr<State> of) : state(std::move(of)) {}
  Handle(const Handle&) = delete;
  ~Handle() { state->abandon(); }
  const std::shared_ptr<State> state;
};

HttpReply::HttpReply(std::shared_ptr<State> state) : handle_(std::make_shared<Handle>(std::move(state))) {}
void HttpReply::add_field(const std::string& name, const std::string& value) {
  handle_->state->add_field({name, value});
}
void HttpReply::send(int status, std::string_view content_type, std::string_view body, const HttpFields& fields) {
  handle_->state->send(status, content_type, body, fields);
}
void HttpReply::begin(int status, std::string_view content_type, const HttpFields& fields) {
  handle_->state->begin(status, content_type, fields);
}
void HttpReply::write(std::string_view piece) { handle_->state->write(piece); }
void HttpReply::end() { handle_->state->end(); }
bool HttpReply::begun() const { return handle_->state->begun(); }
bool HttpReply::gone() const { return handle_->state->gone(); }
void HttpReply::on_gone(std::function<void()> call) { handle_->state->on_gone(std::move(call)); }
void HttpReply::on_outcome(std::function<void(const HttpOutcome& outcome)> call) {
  handle_->state->on_outcome(std::move(call));
}

std::string_view find_field(const HttpFields& fields, std::string_view name) {
  const auto same = [&](const HttpField& field) {
    return std::ranges::equal(field.name, name,
                              [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
  };
  const auto found = std::ranges::find_if(fields, same);
  return found != fields.end() ? std::string_view(found->value) : std::string_view();
}

const char* http_status_name(int status) {
  constexpr std::pair<int, const char*> kNames[] = {{200, "OK"},
                                                    {204, "No Content"},
                                                    {400, "Bad Request"},
                                                    {401, "Unauthorized"},
                                                    {403, "Forbidden"},
                                                    {404, "Not Found"},
                                                    {405, "Method Not Allowed"},
                                                    {408, "Request Timeout"},
                                                    {409, "Conflict"},
                                                    {411, "Length Required"},
                                                    {413, "Content Too Large"},
                                                    {415, "Unsupported Media Type"},
                                                    {417, "Expectation Failed"},
                                                    {421, "Misdirected Request"},
                                                    {422, "Unprocessable Content"},
                                                    {429, "Too Many Requests"},
                                                    {431, "Request Header Fields Too Large"},
                                                    {499, "Client Closed Request"},
                                                    {500, "Internal Server Error"},
                                                    {501, "Not Implemented"},
                                                    {503, "Service Unavailable"},
                                                    {504, "Gateway Timeout"},
                                                    {505, "HTTP Version Not Supported"}};
  const auto found = std::ranges::find(kNames, status, &std::pair<int, const char*>::first);
  return found != std::end(kNames) ? found->second : "";
}

void HttpReply::State::add_head(int status, std::string_view content_type, const HttpFields& fields,
                                const std::string& length) {
  outcome_.status = status;
  fmt::format_to(std::back_inserter(pending_),
                 "HTTP/1.1 {} {}\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\nContent-Type: {}\r\n{}", status,
                 http_status_name(status), fmt::gmtime(std::time(nullptr)), content_type, length);
  fields_.insert(fields_.end(), fields.begin(), fields.end());
  for (const HttpField& field : fields_) {
    // Line ends would begin another field: values may come from a request.
    std::string value = field.value;
    std::erase_if(value, [](char c) { return c == '\r' || c == '\n'; });
    fmt::format_to(std::back_inserter(pending_), "{}: {}\r\n", field.name, value);
  }
  pending_ += kind_.keeps ? "\r\n" : "Connection: close\r\n\r\n";
}

void HttpReply::State::add_field(HttpField field) {
  const std::lock_guard lock(mutex_);
  fields_.push_back(std::move(field));
}

// Something was added to pending_, or the reply has ended.
void HttpReply::State::ready(std::unique_lock<std::mutex>& lock) {
  const bool slow = phase_ == Phase::kStream && unread_ > kind_.most;
  const bool wake = !std::exchange(woken_, true) || (slow && !too_slow_);
  too_slow_ |= slow;
  std::function<void()> unused;
  if (phase_ == Phase::kEnded) unused = std::move(on_gone_);
  if (wake) wake_();
  lock.unlock();
}

void HttpReply::State::send(int status, std::string_view content_type, std::string_view body,
                            const HttpFields& fields) {
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kNew || gone_) return;
  phase_ = Phase::kEnded;
  add_head(status, content_type, fields, fmt::format("Content-Length: {}\r\n", body.size()));
  if (!kind_.head) pending_ += body;
  unread_ = static_cast<int64_t>(pending_.size());
  ready(lock);
}

void HttpReply::State::begin(int status, std::string_view content_type, const HttpFields& fields) {
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kNew || gone_) return;
  phase_ = Phase::kStream;
  add_head(status, content_type, fields, kind_.chunked ? "Transfer-Encoding: chunked\r\n" : "");
  unread_ = static_cast<int64_t>(pending_.size());
  ready(lock);
}

void HttpReply::State::write(std::string_view piece) {
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kStream || gone_ || piece.empty() || kind_.head) return;
  const size_t before = pending_.size();
  if (kind_.chunked) {
    fmt::format_to(std::back_inserter(pending_), "{:x}\r\n", piece.size());
    pending_.append(piece).append("\r\n");
  } else {
    pending_ += piece;
  }
  unread_ += static_cast<int64_t>(pending_.size() - before);
  ready(lock);
}

void HttpReply::State::end() {
  std::unique_lock lock(mutex_);
  if (phase_ != Phase::kStream || gone_) return;
  phase_ = Phase::kEnded;
  if (kind_.chunked && !kind_.head) pending_ += "0\r\n\r\n", unread_ += 5;
  ready(lock);
}

void HttpReply::State::abandon() {
  {
    std::unique_lock lock(mutex_);
    if (phase_ == Phase::kEnded || gone_) return;
    if (phase_ == Phase::kStream) {
      phase_ = Phase::kEnded, broken_ = true;
      return ready(lock);
    }
  }
  send(500, "application/json", R"({"error":{"message":"the request was dropped","type":"internal_error"}})", {});
}

bool HttpReply::State::begun() const {
  const std::lock_guard lock(mutex_);
  return phase_ != Phase::kNew;
}

bool HttpReply::State::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

void HttpReply::State::on_gone(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      if (phase_ != Phase::kEnded) on_gone_ = std::move(call);
      return;
    }
  }
  call();
}

HttpReply::State::Taken HttpReply::State::take() {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  return {.bytes = std::exchange(pending_, {}), .ended = phase_ == Phase::kEnded, .broken = broken_};
}

bool HttpReply::State::too_slow() const {
  const std::lock_guard lock(mutex_);
  return too_slow_;
}

void HttpReply::State::sent(size_t bytes) {
  const std::lock_guard lock(mutex_);
  unread_ -= static_cast<int64_t>(bytes);
  if (outcome_.bytes == 0) outcome_.first_byte = std::chrono::duration<double>(Clock::now() - asked_).count();
  outcome_.bytes += static_cast<int64_t>(bytes);
}

void HttpReply::State::on_outcome(std::function<void(const HttpOutcome&)> call) {
  const std::lock_guard lock(mutex_);
  on_outcome_ = std::move(call);
}

void HttpReply::State::tell_outcome() {
  std::unique_lock lock(mutex_);
  outcome_.seconds = std::chrono::duration<double>(Clock::now() - asked_).count();
  const auto call = std::exchange(on_outcome_, nullptr);
  lock.unlock();
  if (call) call(outcome_);
}

void HttpReply::State::set_gone() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    gone_ = true;
    if (phase_ != Phase::kEnded) call = std::move(on_gone_);
    on_gone_ = nullptr;
  }
  if (call) call();
}

}  // namespace octet::serve
