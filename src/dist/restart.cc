// A child that is started again when it has failed. The process that waits has one thread and takes its signals by
// sigwaitinfo, so there is no handler and nothing to race with.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "dist/launch.h"

namespace octet {
namespace {

// Blocks the signals that are waited for; the child gets the mask back as it was.
class SignalMask {
 public:
  SignalMask() {
    sigemptyset(&waited);
    std::signal(SIGCHLD, SIG_DFL);  // where it is ignored, nothing is known of how a child ended
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
      struct sigaction now {};
      sigaction(signal, nullptr, &now);
      if (now.sa_handler != SIG_IGN) sigaddset(&waited, signal);  // under nohup SIGHUP stays ignored
    }
    pthread_sigmask(SIG_BLOCK, &waited, &old_);
  }
  SignalMask(const SignalMask&) = delete;
  ~SignalMask() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }

  sigset_t waited;

 private:
  sigset_t old_;
};

std::string how_it_ended(int status) {
  if (WIFEXITED(status)) return fmt::format("the run ended with exit status {}", WEXITSTATUS(status));
  const char* name = sigabbrev_np(WTERMSIG(status));
  return fmt::format("the run was ended by signal SIG{} ({})", name != nullptr ? name : "?", WTERMSIG(status));
}

}  // namespace

std::optional<int> restart_after_failures(int64_t restarts, const std::function<void(const std::string&)>& log) {
  const SignalMask signals;
  bool told_to_end = false;
  for (int64_t restart = 0;;) {
    const pid_t parent = getpid(), child = fork();
    check(child >= 0, ErrorCode::kIo, "cannot start the run: {}", std::strerror(errno));
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);  // it ended before prctl
      return std::nullopt;
    }
    int status = 0;  // waitpid's
    do {             // of pending signals the lowest comes first, SIGCHLD last
      siginfo_t info{};
      const int signal = sigwaitinfo(&signals.waited, &info);
      if (signal <= 0 || signal == SIGCHLD) continue;
      told_to_end = true;
      if (info.si_code != SI_KERNEL) kill(child, signal);  // a terminal's goes to the child too
    } while (waitpid(child, &status, WNOHANG) == 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0) return code;
    log(how_it_ended(status));
    if (told_to_end || restart == restarts) return code;
    log(fmt::format("starting it again ({} of {})", ++restart, restarts));
  }
}

}  // namespace octet
