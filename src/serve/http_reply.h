// The state of one reply, between those who make it and the connection that sends it.
#pragma once

#include <chrono>
#include <mutex>

#include "serve/http.h"

namespace octet::serve {

class HttpReply::State {
 public:
  struct Kind {
    bool head = false;       // of a HEAD request: the body is left out
    bool chunked = true;     // HTTP/1.1: streams are chunked, else they end with the connection
    bool keeps = true;       // the connection stays for another request
    int64_t most = 1 << 20;  // unread bytes of a stream
  };
  // `wake` tells the connection that there is something to send, at most once until take(), and once when its peer
  // reads too slowly; from any thread. It must not call the state: the mutex is held, so that no call is under way once
  // set_gone() has returned.
  State(const Kind& kind, std::function<void()> wake) : kind_(kind), wake_(std::move(wake)) {}

  // --- for the handles
  void add_field(HttpField field);
  void send(int status, std::string_view content_type, std::string_view body, const HttpFields& fields);
  void begin(int status, std::string_view content_type, const HttpFields& fields);
  void write(std::string_view piece);
  void end();
  void abandon();
  bool begun() const;
  bool gone() const;
  void on_gone(std::function<void()> call);
  void on_outcome(std::function<void(const HttpOutcome&)> call);

  // --- for the connection
  struct Taken {
    std::string bytes;
    bool ended = false;   // nothing comes behind them
    bool broken = false;  // the peer must not take what it has for a whole reply: close
  };
  Taken take();
  void sent(size_t bytes);  // of those taken
  bool too_slow() const;    // more than `most` of a stream is unread
  void set_gone();          // calls what waits for it
  void tell_outcome();      // the same
  bool keeps() const { return kind_.keeps; }

 private:
  enum class Phase : uint8_t { kNew, kStream, kEnded };

  void add_head(int status, std::string_view content_type, const HttpFields& fields, const std::string& length);
  void ready(std::unique_lock<std::mutex>& lock);

  const Kind kind_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::string pending_;
  HttpFields fields_;   // of any head
  int64_t unread_ = 0;  // pending and taken, not yet sent
  Phase phase_ = Phase::kNew;
  bool woken_ = false, broken_ = false, gone_ = false, too_slow_ = false;
  std::function<void()> on_gone_;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point asked_ = Clock::now();
  HttpOutcome outcome_;
  std::function<void(const HttpOutcome&)> on_outcome_;
};

}  // namespace octet::serve
