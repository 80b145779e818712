#include "train/signals.h"

namespace octet {
namespace {

volatile std::sig_atomic_t g_signal = 0;
void on_signal(int signal) { g_signal = signal; }

}  // namespace

SignalGuard::SignalGuard(bool on) : on_(on) {
  g_signal = 0;
  if (!on_) return;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
  action.sa_flags = 0;
  sigaction(SIGHUP, &action, &old_hup_);
  if (old_hup_.sa_handler == SIG_IGN) sigaction(SIGHUP, &old_hup_, nullptr);
}

SignalGuard::~SignalGuard() {
  if (!on_) return;
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGHUP, &old_hup_, nullptr);
}

bool SignalGuard::raised() { return g_signal != 0; }

}  // namespace octet
