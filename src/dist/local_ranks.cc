// Octet's own launcher: forks the ranks of one machine and waits for what becomes of them. It has one thread and takes
// its signals by sigtimedwait, so there is no handler and nothing to race with.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "dist/launch.h"
#include "dist/socket.h"

namespace octet {
namespace {

// Blocks the signals that the launcher waits for; ranks get the mask back as it was.
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
    pthread_sigmask(SIG_BLOCK, &waited, &old);
  }
  SignalMask(const SignalMask&) = delete;
  ~SignalMask() { pthread_sigmask(SIG_SETMASK, &old, nullptr); }

  sigset_t waited, old;
};

std::string random_token() {
  std::random_device device;  // the kernel's
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

// Starts a rank with the variables that find_identity reads. One thread: after fork the child may still allocate.
pid_t start_rank(const LocalLaunch& launch, int32_t rank, int port, const std::string& token, const sigset_t& mask) {
  const bool logs = rank != 0 && !launch.log_folder.empty();
  const std::string path = fmt::format("{}/rank_{}.log", launch.log_folder, rank);
  const Descriptor log(logs ? open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1);
  check(!logs || log.value >= 0, ErrorCode::kIo, "cannot write {}: {}", path, std::strerror(errno));
  const pid_t parent = getpid(), child = fork();
  check(child >= 0, ErrorCode::kIo, "cannot start rank {} of {}: {}", rank, launch.ranks, std::strerror(errno));
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it ended before prctl
  if (logs && (dup2(log.value, 1) < 0 || dup2(log.value, 2) < 0)) _exit(127);
  for (const char* name : {"RANK", "LOCAL_RANK"}) setenv(name, std::to_string(rank).c_str(), 1);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) setenv(name, std::to_string(launch.ranks).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  setenv("OCTET_TOKEN", token.c_str(), 1);
  unsetenv("TORCHELASTIC_RUN_ID");  // these variables are not torchrun's
  std::vector<char*> arguments;
  for (const std::string& argument : launch.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

struct Ended {
  int32_t rank = -1;
  int status = 0;  // waitpid's

  bool failed() const { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }
  int exit_status() const { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }
  std::string text() const {
    if (WIFEXITED(status)) return fmt::format("ended with exit status {}", WEXITSTATUS(status));
    const char* name = sigabbrev_np(WTERMSIG(status));
    return fmt::format("was ended by signal SIG{} ({})", name != nullptr ? name : "?", WTERMSIG(status));
  }
};

// All ranks of one start.
class Ranks {
 public:
  Ranks(const LocalLaunch& launch, const SignalMask& signals) : launch_(launch), signals_(signals) {}
  Ranks(const Ranks&) = delete;
  ~Ranks() {  // only after an error are any left
    send(SIGKILL);
    for (const pid_t child : children_)
      if (child > 0) waitpid(child, nullptr, 0);
  }

  // The first that failed, or rank -1 when none did.
  Ended run() {
    const int port = port_of(listen_at("127.0.0.1", 0));
    const std::string token = random_token();
    for (int32_t rank = 0; rank < launch_.ranks; ++rank)
      children_.push_back(start_rank(launch_, rank, port, token, signals_.old));
    Ended first;
    auto kill_at = Clock::time_point::max();
    while (running() > 0) {
      wait_for_signal(kill_at);
      const Ended ended = collect();
      if (ended.rank >= 0 && first.rank < 0) {
        first = ended;
        send(SIGTERM);
        kill_at = Clock::now() +
                  std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(launch_.kill_after));
      }
      if (Clock::now() >= kill_at) {
        send(SIGKILL);
        kill_at = Clock::time_point::max();
      }
    }
    return first;
  }
  bool told_to_end() const { return told_to_end_; }

 private:
  int64_t running() const {
    return std::ranges::count_if(children_, [](pid_t child) { return child > 0; });
  }
  void send(int signal) const {
    for (const pid_t child : children_)
      if (child > 0) kill(child, signal);
  }

  // Until a child ends or a signal comes, which is passed on; at most until `deadline`.
  void wait_for_signal(Clock::time_point deadline) {
    const int64_t wait = deadline == Clock::time_point::max() ? 3600'000 : milliseconds_until(deadline);
    const timespec time{.tv_sec = wait / 1000, .tv_nsec = wait % 1000 * 1'000'000};
    siginfo_t info{};
    const int signal = sigtimedwait(&signals_.waited, &info, &time);
    if (signal <= 0 || signal == SIGCHLD) return;
    told_to_end_ = true;
    if (info.si_code != SI_KERNEL) send(signal);  // a terminal's goes to the ranks too, and a second one would end them
  }

  // Takes note of all children that have ended; of those that failed one that a signal ended goes first, since the
  // others may have failed for its loss. Rank -1 when none failed.
  Ended collect() {
    Ended first;
    for (int32_t rank = 0; rank < launch_.ranks; ++rank) {
      pid_t& child = children_[static_cast<size_t>(rank)];
      Ended ended{.rank = rank};
      if (child <= 0 || waitpid(child, &ended.status, WNOHANG) != child) continue;
      child = 0;
      if (ended.failed() && (first.rank < 0 || (WIFEXITED(first.status) && WIFSIGNALED(ended.status)))) first = ended;
    }
    return first;
  }

  const LocalLaunch& launch_;
  const SignalMask& signals_;
  std::vector<pid_t> children_;  // by rank; 0 when it has ended
  bool told_to_end_ = false;
};

}  // namespace

int run_local_ranks(LocalLaunch launch) {
  const SignalMask signals;
  if (!launch.log_folder.empty()) make_folders(launch.log_folder);
  for (int32_t restart = 0;;) {
    Ranks ranks(launch, signals);
    const Ended first = ranks.run();
    if (first.rank < 0) return 0;
    const std::string log = first.rank > 0 && !launch.log_folder.empty()
                                ? fmt::format("; its output is in {}/rank_{}.log", launch.log_folder, first.rank)
                                : "";
    if (launch.log)
      launch.log(fmt::format("rank {} of {} on {} {}{}", first.rank, launch.ranks, host_name(), first.text(), log));
    if (ranks.told_to_end() || restart == launch.restarts) return first.exit_status();
    ++restart;
    if (launch.before_restart) launch.before_restart(launch);
    if (launch.log)
      launch.log(fmt::format("starting {} ranks again ({} of {})", launch.ranks, restart, launch.restarts));
  }
}

}  // namespace octet
