// SIGINT, SIGTERM and SIGHUP as a flag that a run polls between pieces of work.
#pragma once

#include <csignal>

namespace octet {

// During the lifetime of a guard (with `on`) the signals set a flag; a second SIGINT or SIGTERM has its default effect.
// A closed terminal may send more than one SIGHUP, from the kernel and from the shell: they all only set the flag. A
// SIGHUP that was ignored (nohup) stays ignored. One at a time.
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
  }, old_term_{}, old_hup_{};
};

}  // namespace octet
