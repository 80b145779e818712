// The control plane between real processes, of which one is killed or stopped.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "dist/control.h"
#include "dist/testing/free_port.h"

namespace octet {
namespace {

constexpr int32_t kRanks = 4;
constexpr double kTimeout = 1;

// A rank that has run two graphs, and then waits for the others; `victim` waits for its end.
[[noreturn]] void run_rank(int32_t rank, int port, int32_t victim, const TempFolder& folder) {
  const std::string error = error_of([&] {
    Control control({.rank = rank,
                     .size = kRanks,
                     .host = fmt::format("host{}", rank),
                     .address = "127.0.0.1",
                     .port = port,
                     .token = "token"},
                    {.timeout = kTimeout});
    control.note(6, "train");
    control.note(7, "accumulate");
    control.broadcast("start", "");
    if (rank == victim) {
      write_file(folder.file("ready"), "");
      pause();
    }
    control.broadcast("step", "");
  });
  write_file(folder.file(std::to_string(rank)), error);
  _exit(0);
}

struct Outcome {
  std::vector<std::string> errors;  // of the ranks but the victim
  double seconds = 0;               // from the signal until they all have ended
};

Outcome strike(int32_t victim, int signal) {
  const TempFolder folder;
  const int port = free_port();
  std::vector<pid_t> children;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) run_rank(rank, port, victim, folder);
  }
  while (!path_exists(folder.file("ready"))) usleep(1000);
  Outcome outcome;
  const auto begin = Clock::now();
  kill(children[static_cast<size_t>(victim)], signal);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    waitpid(children[static_cast<size_t>(rank)], nullptr, 0);
    outcome.errors.push_back(read_file(folder.file(std::to_string(rank))));
  }
  outcome.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  kill(children[static_cast<size_t>(victim)], SIGKILL);
  waitpid(children[static_cast<size_t>(victim)], nullptr, 0);
  return outcome;
}

TEST(ControlProcesses, AKilledRankIsLostAtOnce) {
  for (const int32_t victim : {0, 2}) {
    const Outcome outcome = strike(victim, SIGKILL);
    for (const std::string& error : outcome.errors)
      EXPECT_EQ(error,
                fmt::format("rank {0} of 4 on host{0} has ended or closed its connection; it was in step 7, graph "
                            "accumulate (number 2 of its run)",
                            victim));
    EXPECT_LT(outcome.seconds, 3);  // the bound users are given
  }
}

TEST(ControlProcesses, AStoppedRankIsLostAfterTheTimeout) {
  for (const int32_t victim : {0, 2}) {
    const Outcome outcome = strike(victim, SIGSTOP);
    for (const std::string& error : outcome.errors)
      EXPECT_EQ(error, fmt::format("rank {0} of 4 on host{0} was silent for 1 s; it was in step 7, graph accumulate "
                                   "(number 2 of its run)",
                                   victim));
    EXPECT_LT(outcome.seconds, kTimeout + 5);
  }
}

}  // namespace
}  // namespace octet
