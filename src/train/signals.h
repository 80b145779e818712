// SIGINT and SIGTERM as a question that a run asks between pieces of work.
#pragma once

#include <csignal>

namespace octet {

// While one of these lives (with `on`) the two signals set a flag; a second one acts as usual. One at a time.
class SignalGuard {
 public:
  explicit SignalGuard(bool on);
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  ~SignalGuard();
  static bool raised();

 private:
  bool on_;
  struct sigaction old_int_ {
  }, old_term_{};
};

}  // namespace octet
