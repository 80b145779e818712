// Octet's own launcher. The ranks are this test program again, running the disabled test below, which does what the
// variable OCTET_TEST_RANK says; testing/slurm_test.sh runs it too.
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
#include "dist/socket.h"

namespace octet {
namespace {

std::string variable(const char* name) {
  const char* text = getenv(name);
  return text != nullptr ? text : "";
}

TEST(LocalRank, DISABLED_Work) {
  const std::string work = variable("OCTET_TEST_RANK"), folder = variable("OCTET_TEST_FOLDER");
  const auto identity = find_identity([](const char* name) { return getenv(name); });
  if (work == "alone") _exit(identity.has_value() ? 1 : 0);
  const int32_t rank = identity->rank;
  const auto write_result = [&](const std::string& text) { write_file(fmt::format("{}/{}", folder, rank), text); };
  if (work == "identity") {
    write_result(fmt::format("{} {} {} {} {} {} {} {}", rank, identity->size, identity->local_rank,
                             identity->local_size, identity->address, identity->port, identity->token,
                             identity->launcher));
    fmt::print(stderr, "rank {} writes\n", rank);
  } else if (work == "exit 3") {
    if (rank == 1) _exit(3);
    pause();
  } else if (work == "kill") {
    if (rank == 2) raise(SIGKILL);
    pause();
  } else if (work == "stubborn") {
    signal(SIGTERM, SIG_IGN);
    write_result("ignores");
    if (rank == 1) {
      while (!path_exists(folder + "/0")) usleep(1000);
      _exit(4);
    }
    pause();
  } else if (work == "wait for signal") {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    write_result("waits");
    int signal = 0;
    sigwait(&all, &signal);
    _exit(signal == SIGTERM ? 0 : 9);
  } else if (work == "restart") {
    _exit(identity->size == 3 ? 5 : 0);
  } else if (work == "hang up") {  // at the first start
    if (path_exists(folder + "/0")) _exit(0);
    write_result("");
    kill(getppid(), SIGHUP);
    _exit(5);
  } else if (work == "control") {
    signal(SIGTERM, SIG_IGN);  // as a run does that still has to say why it ends
    write_result(error_of([&] {
      Control control(*identity);
      control.barrier("start");
      if (rank == 1) raise(SIGKILL);
      control.barrier("step");
    }));
    _exit(1);
  } else if (work == "orphan") {  // holds the lock of its file until it ends
    const int file = open(fmt::format("{}/lock{}", folder, rank).c_str(), O_RDWR | O_CREAT, 0600);
    if (lockf(file, F_LOCK, 0) != 0) _exit(1);
    write_result("locked");
    pause();
  }
  _exit(0);
}

class LocalRanks : public testing::Test {
 protected:
  LocalLaunch launch(const std::string& work, int32_t ranks) {
    setenv("OCTET_TEST_RANK", work.c_str(), 1);
    setenv("OCTET_TEST_FOLDER", folder_.path().c_str(), 1);
    LocalLaunch launch{.ranks = ranks};
    launch.arguments = {"octet_dist_test", "--gtest_filter=LocalRank.DISABLED_Work", "--gtest_also_run_disabled_tests",
                        "--gtest_brief=1"};
    launch.kill_after = 30;
    launch.log = [this](const std::string& line) { log_.push_back(line); };
    return launch;
  }
  // Waits until the ranks have written their results.
  void wait_for(int32_t ranks) const {
    for (int32_t rank = 0; rank < ranks; ++rank)
      while (!path_exists(folder_.file(std::to_string(rank)))) usleep(1000);
  }

  TempFolder folder_;
  std::vector<std::string> log_;
};

TEST_F(LocalRanks, KnowWhoTheyAreAndWriteTheirLogs) {
  LocalLaunch three = launch("identity", 3);
  three.log_folder = folder_.file("ranks");
  EXPECT_EQ(run_local_ranks(three), 0);
  const std::string first = read_file(folder_.file("0"));
  const std::string rest = first.substr(first.find("127.0.0.1"));
  EXPECT_TRUE(rest.ends_with(" octet")) << rest;
  EXPECT_GT(rest.size(), std::string("127.0.0.1 1 octet").size() + 32) << rest;
  for (int32_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(read_file(folder_.file(std::to_string(rank))), fmt::format("{} 3 {} 3 {}", rank, rank, rest));
  EXPECT_FALSE(path_exists(folder_.file("ranks/rank_0.log")));
  for (int32_t rank : {1, 2})
    EXPECT_NE(read_file(folder_.file(fmt::format("ranks/rank_{}.log", rank))).find(fmt::format("rank {} writes", rank)),
              std::string::npos);
  EXPECT_TRUE(log_.empty());
}

TEST_F(LocalRanks, TheFirstThatFailsIsNamedAndTheOthersEnd) {
  EXPECT_EQ(run_local_ranks(launch("exit 3", 3)), 3);
  ASSERT_EQ(log_.size(), 1);
  EXPECT_EQ(log_[0], fmt::format("rank 1 of 3 on {} ended with exit status 3", host_name()));
}

TEST_F(LocalRanks, ASignalIsNamed) {
  LocalLaunch four = launch("kill", 4);
  four.log_folder = folder_.path();
  EXPECT_EQ(run_local_ranks(four), 128 + SIGKILL);
  ASSERT_EQ(log_.size(), 1);
  EXPECT_EQ(log_[0], fmt::format("rank 2 of 4 on {} was ended by signal SIGKILL (9); its output is in {}/rank_2.log",
                                 host_name(), folder_.path()));
}

TEST_F(LocalRanks, WhoIgnoresSigtermIsKilled) {
  LocalLaunch two = launch("stubborn", 2);
  two.kill_after = 0.05;
  EXPECT_EQ(run_local_ranks(two), 4);
}

TEST_F(LocalRanks, StartAgainWithFewer) {
  LocalLaunch three = launch("restart", 3);
  three.restarts = 2;
  three.before_restart = [](LocalLaunch& launch) { launch.ranks = 2; };
  EXPECT_EQ(run_local_ranks(three), 0);
  ASSERT_EQ(log_.size(), 2);
  EXPECT_EQ(log_[1], "starting 2 ranks again (1 of 2)");

  three.before_restart = nullptr, log_.clear();
  EXPECT_EQ(run_local_ranks(three), 5);
  EXPECT_EQ(log_.size(), 5);
}

TEST_F(LocalRanks, MeetAndLearnWhoIsLost) {
  EXPECT_EQ(run_local_ranks(launch("control", 3)), 128 + SIGKILL);
  ASSERT_EQ(log_.size(), 1);
  EXPECT_EQ(log_[0], fmt::format("rank 1 of 3 on {} was ended by signal SIGKILL (9)", host_name()));
  for (const char* rank : {"0", "2"})
    EXPECT_EQ(read_file(folder_.file(rank)),
              fmt::format("rank 1 of 3 on {} has ended or closed its connection; it had run no graph", host_name()));
}

// Forks a process that launches two ranks and exits with what run_local_ranks returns.
pid_t fork_launcher(const LocalLaunch& launch) {
  const pid_t child = fork();
  if (child != 0) return child;
  _exit(run_local_ranks(launch));
}

TEST_F(LocalRanks, SignalsArePassedOnAndEndRestarts) {
  LocalLaunch two = launch("wait for signal", 2);
  two.restarts = 3;
  for (const auto& [signal, status] : {std::pair{SIGTERM, 0}, {SIGINT, 9}}) {
    const pid_t child = fork_launcher(two);
    wait_for(2);
    kill(child, signal);
    int ended = 0;
    ASSERT_EQ(waitpid(child, &ended, 0), child);
    EXPECT_EQ(WEXITSTATUS(ended), status);
    for (const char* rank : {"0", "1"}) remove_path(folder_.file(rank));
  }
}

TEST_F(LocalRanks, AnIgnoredSignalStaysIgnored) {
  LocalLaunch one = launch("hang up", 1);
  one.restarts = 1;
  for (const bool ignored : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
      _exit(run_local_ranks(one));
    }
    int ended = 0;
    waitpid(child, &ended, 0);
    EXPECT_EQ(ended == 0, ignored);  // not ignored, it is a wish to end: there is no restart
    remove_path(folder_.file("0"));
  }
}

TEST_F(LocalRanks, EndWithTheirLauncher) {
  const pid_t child = fork_launcher(launch("orphan", 2));
  wait_for(2);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (int rank = 0; rank < 2; ++rank) {  // the locks are free when the ranks have ended
    const int file = open(folder_.file(fmt::format("lock{}", rank)).c_str(), O_RDWR);
    EXPECT_EQ(lockf(file, F_LOCK, 0), 0);
    close(file);
  }
}

}  // namespace
}  // namespace octet
