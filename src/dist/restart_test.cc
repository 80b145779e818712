// Runs that are started again: the child is a fork of this test program, and does what a test says. Besides a rank for
// testing/slurm_test.sh.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "dist/control.h"
#include "dist/launch.h"

namespace octet {
namespace {

std::string variable(const char* name) {
  const char* text = getenv(name);
  return text != nullptr ? text : "";
}

// A rank that srun starts, and that does what OCTET_TEST_RANK says.
TEST(Rank, DISABLED_Work) {
  const std::string work = variable("OCTET_TEST_RANK"), folder = variable("OCTET_TEST_FOLDER");
  const auto identity = find_identity([](const char* name) { return getenv(name); });
  if (work == "alone") _exit(identity.has_value() ? 1 : 0);
  const int32_t rank = identity->rank;
  const auto write_result = [&](const std::string& text) { write_file(fmt::format("{}/{}", folder, rank), text); };
  if (work == "identity") {
    write_result(fmt::format("{} {} {} {} {} {} {} {}", rank, identity->size, identity->local_rank,
                             identity->local_size, identity->address, identity->port, identity->token,
                             identity->launcher));
    _exit(0);
  }
  signal(SIGTERM, SIG_IGN);  // as a run does that still has to say why it ends
  write_result(error_of([&] {
    Control control(*identity);
    control.broadcast("start", "");
    if (rank == 1) raise(SIGKILL);
    control.broadcast("step", "");
  }));
  _exit(1);
}

class Restart : public testing::Test {
 protected:
  // restart_after_failures() in this process, with children that run `work` and end with what it returns.
  template <typename Work>
  int restart(int64_t restarts, const Work& work) {
    const auto status = restart_after_failures(restarts, [this](const std::string& line) { log_.push_back(line); });
    if (!status) _exit(work());
    return *status;
  }
  // The same in a process of its own.
  template <typename Work>
  pid_t fork_and_restart(int64_t restarts, const Work& work) {
    const pid_t child = fork();
    if (child == 0) _exit(restart(restarts, work));
    return child;
  }
  // How many children there were, this one included; each of them asks once.
  int starts() const {
    int count = 0;
    while (path_exists(folder_.file(std::to_string(count)))) ++count;
    write_file(folder_.file(std::to_string(count)), "");
    return count + 1;
  }
  void wait_for(const std::string& file) const {
    while (!path_exists(folder_.file(file))) usleep(1000);
  }

  TempFolder folder_;
  std::vector<std::string> log_;
};

TEST_F(Restart, UntilTheRunSucceeds) {
  EXPECT_EQ(restart(0, [] { return 0; }), 0);
  EXPECT_TRUE(log_.empty());
  EXPECT_EQ(restart(5,
                    [&] {
                      const int start = starts();
                      if (start == 2) raise(SIGKILL);
                      return start == 3 ? 0 : 5;
                    }),
            0);
  const std::vector<std::string> lines = {"the run ended with exit status 5", "starting it again (1 of 5)",
                                          "the run was ended by signal SIGKILL (9)", "starting it again (2 of 5)"};
  EXPECT_EQ(log_, lines);
}

TEST_F(Restart, AsOftenAsAllowed) {
  EXPECT_EQ(restart(2, [&] { return 2 + starts(); }), 5);
  ASSERT_EQ(log_.size(), 5u);
  EXPECT_EQ(log_[4], "the run ended with exit status 5");
  EXPECT_EQ(restart(0, [] { return raise(SIGKILL); }), 128 + SIGKILL);
}

TEST_F(Restart, SignalsArePassedOnAndEndRestarts) {
  for (const auto& [signal, expected] : {std::pair{SIGTERM, 0}, {SIGINT, 9}}) {
    const pid_t child = fork_and_restart(3, [&] {
      sigset_t all;
      sigfillset(&all);
      sigprocmask(SIG_BLOCK, &all, nullptr);
      write_file(folder_.file("waits"), "");
      int got = 0;
      sigwait(&all, &got);
      return got == SIGTERM ? 0 : 9;
    });
    wait_for("waits");
    kill(child, signal);
    int ended = 0;
    ASSERT_EQ(waitpid(child, &ended, 0), child);
    EXPECT_EQ(WEXITSTATUS(ended), expected);
    remove_path(folder_.file("waits"));
  }
}

TEST_F(Restart, AnIgnoredSignalStaysIgnored) {
  for (const bool ignored : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
      _exit(restart(1, [&] {  // hangs up at the first start
        if (starts() > 1) return 0;
        kill(getppid(), SIGHUP);
        return 5;
      }));
    }
    int ended = 0;
    waitpid(child, &ended, 0);
    EXPECT_EQ(ended == 0, ignored);  // not ignored, it is a wish to end: there is no restart
    remove_path(folder_.file("0"));
    remove_path(folder_.file("1"));
  }
}

TEST_F(Restart, TheChildEndsWithItsParent) {
  const pid_t parent = fork_and_restart(0, [&] {  // holds the lock of its file until it ends
    const int file = open(folder_.file("lock").c_str(), O_RDWR | O_CREAT, 0600);
    if (lockf(file, F_LOCK, 0) != 0) return 1;
    write_file(folder_.file("locked"), "");
    return pause();
  });
  wait_for("locked");
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  const int file = open(folder_.file("lock").c_str(), O_RDWR);
  EXPECT_EQ(lockf(file, F_LOCK, 0), 0);
  close(file);
}

}  // namespace
}  // namespace octet
