// A model on ranks that are processes, with the variables of a launcher: the same tokens, and ends in bounded time.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "base/threads.h"
#include "dist/testing/free_port.h"
#include "infer/testing/engine_test.h"

namespace octet {
namespace {

EngineOptions tiny_options(int64_t tensor, double timeout = 20) {
  return {.device = "cpu",
          .tensor = tensor,
          .rank_timeout = timeout,
          .recipe = "fp32",
          .max_sequences = 4,
          .max_step_tokens = 64,
          .kv_cache_bytes = 1 << 20,
          .random_weights = true};
}

GenerationRequest request(uint64_t seed, int64_t tokens = 40) {
  return {.prompt_ids = some_ids(3 + static_cast<int64_t>(seed), seed),
          .sampling = {.temperature = seed % 2 == 0 ? 0.0f : 1.0f, .seed = seed},
          .max_tokens = tokens,
          .ignore_eos = true};
}

std::string texts(Engine& engine) {
  std::vector<GenerationStream> streams;
  for (uint64_t seed = 0; seed < 6; ++seed) streams.push_back(engine.submit(request(seed)));
  std::string all;
  for (GenerationStream& stream : streams) {
    const Collected text = collect(stream)[0];
    all += fmt::format("{} {}\n", fmt::join(text.ids, ","), text.error);
  }
  return all;
}

// Processes that a launcher started; what each of them leaves is in the file of its number.
class Processes {
 public:
  explicit Processes(int32_t size) : size_(size), port_(free_port()) {}
  ~Processes() {
    for (const pid_t child : children_)
      if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  }

  // Of each rank the engine of these options. Rank 0 does `work` with it; the others write why they ended.
  void start(const std::function<EngineOptions(int32_t rank)>& options,
             const std::function<std::string(Engine&)>& work) {
    release_threads();  // a fork has none
    for (int32_t rank = 0; rank < size_; ++rank) {
      children_.push_back(fork());
      if (children_.back() != 0) continue;
      set_variables(rank);
      set_thread_count(1);
      std::string left;
      const std::string error = error_of([&] {
        const auto engine = Engine::open("gpt2-nano", options(rank));
        left = engine != nullptr ? work(*engine) : "followed";
      });
      write_file(file(rank), left.empty() ? error : left);
      _exit(left.empty() ? 1 : 0);
    }
  }
  void start(const EngineOptions& options, const std::function<std::string(Engine&)>& work) {
    start([&](int32_t) { return options; }, work);
  }

  // What the rank has left, when it has ended by itself.
  std::string end(int32_t rank) {
    int status = 0;
    waitpid(std::exchange(children_[static_cast<size_t>(rank)], 0), &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << "rank " << rank;
    return read_file(file(rank));
  }
  void send(int32_t rank, int signal) { kill(children_[static_cast<size_t>(rank)], signal); }
  std::string file(const std::string& name) const { return folder_.file(name); }
  std::string file(int32_t rank) const { return file(std::to_string(rank)); }
  void wait_for(const std::string& name) const {
    while (!path_exists(file(name))) usleep(1000);
  }

 private:
  void set_variables(int32_t rank) const {
    const std::pair<const char*, int> numbers[] = {{"RANK", rank},
                                                   {"LOCAL_RANK", rank},
                                                   {"WORLD_SIZE", size_},
                                                   {"LOCAL_WORLD_SIZE", size_},
                                                   {"MASTER_PORT", port_}};
    for (const auto& [name, number] : numbers) setenv(name, std::to_string(number).c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
  }

  int32_t size_;
  int port_;
  TempFolder folder_;
  std::vector<pid_t> children_;
};

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

TEST(RankedProcesses, WriteTheTokensOfThreads) {
  const std::string one = texts(*Engine::open("gpt2-nano", tiny_options(1)));
  const std::string threads = texts(*Engine::open("gpt2-nano", tiny_options(2)));
  Processes processes(2);
  // An engine without work for longer than any wait has: 1 s of silence, and two more for what ranks exchange.
  processes.start(tiny_options(2, 1), [](Engine& engine) {
    const std::string first = texts(engine);
    usleep(3'500'000);
    return first == texts(engine) ? first : "other tokens";
  });
  EXPECT_EQ(processes.end(0), threads);
  EXPECT_EQ(processes.end(1), "followed");
  EXPECT_EQ(threads, one);
}

// Rank 0 of a team that loses one: its requests end with a reason, and so do later ones.
std::string until_lost(Engine& engine, const Processes& processes) {
  write_file(processes.file("ready"), "");
  std::string lost;
  while (lost.empty()) {
    const Collected text = collect_one(engine.submit(request(0)));
    if (text.kind == ErrorKind::kDevice) lost = text.error;
  }
  const bool refused = collect_one(engine.submit(request(0))).kind == ErrorKind::kDevice;
  return lost + (refused && engine.stats().broken ? "" : ": goes on");
}

struct Outcome {
  std::vector<std::string> left;  // by rank, without the victim's
  double seconds = 0;
};

Outcome strike(int32_t victim, int signal, double timeout) {
  Processes processes(2);
  processes.start(tiny_options(2, timeout), [&](Engine& engine) { return until_lost(engine, processes); });
  processes.wait_for("ready");
  usleep(100'000);
  Outcome outcome{.left = {"", ""}};
  outcome.seconds = seconds_of([&] {
    processes.send(victim, signal);
    outcome.left[static_cast<size_t>(1 - victim)] = processes.end(1 - victim);
  });
  return outcome;
}

TEST(RankedProcesses, AKilledRankEndsEveryRequest) {
  const Outcome outcome = strike(1, SIGKILL, 20);
  EXPECT_NE(outcome.left[0].find("rank 1 of 2 on "), std::string::npos) << outcome.left[0];
  EXPECT_NE(outcome.left[0].find(" has ended or closed its connection; it was in step "), std::string::npos)
      << outcome.left[0];
  EXPECT_EQ(outcome.left[0].find("goes on"), std::string::npos) << outcome.left[0];
  EXPECT_LT(outcome.seconds, 5);
}

TEST(RankedProcesses, AStoppedRankEndsEveryRequestInTime) {
  const Outcome outcome = strike(1, SIGSTOP, 1);
  EXPECT_NE(outcome.left[0].find("rank 1 of 2 on "), std::string::npos) << outcome.left[0];
  EXPECT_NE(outcome.left[0].find(" was silent for 1 s; it was in step "), std::string::npos) << outcome.left[0];
  EXPECT_LT(outcome.seconds, 6);
}

TEST(RankedProcesses, TheOthersEndWithRank0) {
  for (const auto& [signal, how] : {std::pair(SIGKILL, "has ended"), std::pair(SIGSTOP, "was silent for 1 s")}) {
    const Outcome outcome = strike(0, signal, 1);
    EXPECT_NE(outcome.left[1].find("rank 0 of 2 on "), std::string::npos) << outcome.left[1];
    EXPECT_NE(outcome.left[1].find(how), std::string::npos) << outcome.left[1];
    EXPECT_LT(outcome.seconds, 6);
  }
}

TEST(RankedProcesses, AnEngineWithoutWorkLearnsThatARankIsLost) {
  Processes processes(2);
  processes.start(tiny_options(2), [&](Engine& engine) {
    write_file(processes.file("ready"), "");
    while (!engine.stats().broken) usleep(1000);
    return collect_one(engine.submit(request(0))).error;
  });
  processes.wait_for("ready");
  processes.send(1, SIGKILL);
  std::string left;
  EXPECT_LT(seconds_of([&] { left = processes.end(0); }), 5);
  EXPECT_NE(left.find("rank 1 of 2 on "), std::string::npos) << left;
}

TEST(RankedProcesses, OtherSettingsAreRefused) {
  Processes processes(2);
  const auto options = [](int32_t rank) {
    EngineOptions own = tiny_options(2);
    own.context = rank == 0 ? 64 : 48;
    return own;
  };
  processes.start(options, [](Engine&) { return "served"; });
  for (const int32_t rank : {0, 1}) {
    const std::string left = processes.end(rank);
    EXPECT_TRUE(left.starts_with("settings: rank 1 of 2 differs from rank 0: line ")) << left;
    EXPECT_NE(left.find("'context: 48' on rank 1, 'context: 64' on rank 0"), std::string::npos) << left;
  }
}

TEST(RankedProcesses, OtherNumbersOfProcessesAreRefused) {
  Processes processes(3);
  processes.start(tiny_options(2), [](Engine&) { return "served"; });
  for (const int32_t rank : {0, 1, 2})
    EXPECT_EQ(processes.end(rank),
              "tensor: 2 ranks share the model, and 3 processes were started (variables): start 2, or want tensor 3");
}

TEST(RankedProcesses, ARankThatCannotStartEndsTheOthers) {
  Processes processes(2);
  const auto options = [](int32_t rank) {
    EngineOptions own = tiny_options(2);
    own.kv_cache_bytes = 0;
    own.planned = [rank](const EnginePlan&) { check(rank != 0, ErrorCode::kOutOfMemory, "too small"); };
    return own;
  };
  processes.start(options, [](Engine&) { return "served"; });
  EXPECT_EQ(processes.end(0), "too small");
  const std::string left = processes.end(1);
  EXPECT_NE(left.find(" gave up: too small; it had run no graph"), std::string::npos) << left;
}

}  // namespace
}  // namespace octet
