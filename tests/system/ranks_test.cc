// Runs on several ranks, as threads, against the run of one: losses, checkpoints that know no mesh, resuming, refusals.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include <cerrno>
#include <cmath>
#include <regex>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/testing/test_error.h"
#include "dist/communicator.h"
#include "dist/testing/free_port.h"
#include "io/manifest.h"
#include "system/tiny.h"
#include "train/start_checks.h"
#include "train/trainer.h"

namespace octet {
namespace {

struct Way {
  const char* name;
  int64_t tensor = 1, data = 1, context = 1;
  bool sequence = false;
  const char* shard = "none";

  void put(RunConfig& config) const {
    config.tensor = tensor, config.data_ranks = data, config.context = context;
    config.sequence = sequence, config.shard = shard;
  }
};

const Way kWays[] = {
    {.name = "tensor 2", .tensor = 2},
    {.name = "tensor 2 sequence", .tensor = 2, .sequence = true},
    {.name = "data 2", .data = 2},
    {.name = "data 2 optimizer", .data = 2, .shard = "optimizer"},
    {.name = "data 2 parameters", .data = 2, .shard = "parameters"},
    {.name = "context 2", .context = 2},
    {.name = "data 2 tensor 2 sequence gradients", .tensor = 2, .data = 2, .sequence = true, .shard = "gradients"},
    {.name = "context 2 gradients", .context = 2, .shard = "gradients"},
    {.name = "data 2 context 2 optimizer", .data = 2, .context = 2, .shard = "optimizer"},
};
const Way kEight = {.name = "2x2x2", .tensor = 2, .data = 2, .context = 2, .shard = "parameters"};

constexpr int64_t kSmallShard = 9000;  // bytes; an embedding has 8192

RunConfig config_of(TempFolder& folder, const char* recipe, const Way& way) {
  RunConfig config = tiny_config(folder, recipe);
  config.dropout = 0.1, config.dropout_bits = std::string(recipe) == "fp32" ? 32 : 8;
  config.global_batch = 4 * config.micro_batch;
  config.threads = 1;
  config.out = folder.file(way.name);
  way.put(config);
  return config;
}

class Ranks : public testing::TestWithParam<const char*> {
 protected:
  Ranks() { set_log_level(LogLevel::kWarning); }
  TempFolder folder_;
};

TEST_P(Ranks, LossesAreThoseOfOne) {
  const auto losses_of = [&](const Way& way) {
    RunConfig config = config_of(folder_, GetParam(), way);
    config.steps = 6, config.eval_interval = 3;
    std::vector<double> losses;
    const TrainResult result =
        train(config, {.on_step = [&](const RunState&, const StepResult& r) { losses.push_back(r.loss); }});
    losses.push_back(result.last_metric);
    return losses;
  };
  const std::vector<double> one = losses_of({.name = "one"});
  ASSERT_EQ(one.size(), 7u);
  const double tolerance = std::string(GetParam()) == "fp32" ? 2e-5 : 2e-2;
  for (const Way& way : kWays) {
    const std::vector<double> losses = losses_of(way);
    ASSERT_EQ(losses.size(), one.size()) << way.name;
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(losses[i], one[i], tolerance) << way.name << ", step " << i + 1;
  }
}

// Norms of parameters and directions are sums over the ranks that share them, each of its own stage.
TEST(Ranks, LambAndLarsTakeTheNormsOfWholeParameters) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  for (const char* name : {"lamb", "lars"}) {
    const auto losses_of = [&](const Way& way, int64_t pipeline = 1, double factor = 1) {
      RunConfig config = config_of(folder, "fp32", way);
      config.out = folder.file(fmt::format("{} {} {} {}", name, way.name, pipeline, factor));
      config.dropout = 0, config.pipeline = pipeline, config.steps = 4, config.eval_interval = 0;
      config.optimizer.name = name, config.optimizer.warmup_steps = 0;
      config.optimizer.lr = factor * (config.optimizer.name == "lamb" ? 0.02 : 4);
      std::vector<double> losses;
      train(config, {.on_step = [&](const RunState&, const StepResult& r) { losses.push_back(r.loss); }});
      return losses;
    };
    const std::vector<double> one = losses_of({.name = "one"});
    ASSERT_EQ(one.size(), 4u);
    // What the norms of half a parameter would make of the rate is seen.
    EXPECT_GT(std::abs(losses_of({.name = "half"}, 1, std::sqrt(0.5))[3] - one[3]), 2e-4) << name;
    const auto expect_same = [&](const std::vector<double>& losses, const char* way) {
      ASSERT_EQ(losses.size(), one.size()) << way;
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_NEAR(losses[i], one[i], 5e-5) << name << " " << way << " " << i + 1;
    };
    for (const Way& way :
         {Way{.name = "tensor 2", .tensor = 2}, Way{.name = "optimizer", .data = 2, .shard = "optimizer"},
          Way{.name = "parameters", .data = 2, .shard = "parameters"},
          Way{.name = "tensor gradients", .tensor = 2, .data = 2, .shard = "gradients"}})
      expect_same(losses_of(way), way.name);
    expect_same(losses_of({.name = "stages"}, 2), "stages");
  }
}

// Loads a checkpoint into a mesh and writes it to OUT.
std::string save_again(const RunConfig& config, const std::string& from, const std::string& out) {
  const auto work = [&](Communicator& rank) {
    StepperOptions options = stepper_options(config, cpu_target());
    options.ranks = config.mesh().ranks() > 1 ? &rank : nullptr;
    const LanguageModel workload(resolve_model(config, 0), config);
    Stepper stepper(workload, options);
    read_checkpoint(from, stepper.executor(), workload);
    write_checkpoint(out, stepper.executor(), workload, checkpoint_content(config));
  };
  run_thread_ranks(config.mesh(), work);
  return checkpoint_folder(out, 0);
}

// A state saved by one rank, loaded and saved again by one mesh after the other, is the same files: so many that each
// rank owns some, or one of a kind.
TEST_P(Ranks, CheckpointsKnowNoMesh) {
  RunConfig config = config_of(folder_, GetParam(), {.name = "one"});
  config.steps = 3;
  const std::string whole = train(config).checkpoint;
  config.shard_bytes = kSmallShard;
  const std::string one = save_again(config, whole, folder_.file("shards of one"));
  const auto expected = checkpoint_bytes(one);
  EXPECT_GE(expected.size(), 16u);
  std::vector<Way> ways(std::begin(kWays), std::end(kWays));
  ways.push_back(kEight);
  std::string saved = one;
  for (const Way& way : ways) {
    way.put(config);
    saved = save_again(config, saved, folder_.file(std::string("shards of ") + way.name));
    EXPECT_TRUE(checkpoint_bytes(saved) == expected) << way.name;
  }
  EXPECT_EQ(verify_folder(saved).files, verify_folder(one).files);
  config.shard_bytes = RunConfig().shard_bytes;
  EXPECT_TRUE(checkpoint_bytes(save_again(config, saved, folder_.file("again"))) == checkpoint_bytes(whole));
}

TEST_P(Ranks, ResumeIsUninterrupted) {
  for (const Way& way : {kWays[1], kWays[3], kWays[7]}) {
    RunConfig config = config_of(folder_, GetParam(), way);
    config.steps = 6, config.checkpoint_interval = 3;
    const auto whole = checkpoint_bytes(train(config).checkpoint);
    config.out += " again", config.steps = 3;
    train(config);
    config.steps = 6;
    EXPECT_TRUE(checkpoint_bytes(train(config).checkpoint) == whole) << way.name;
  }
}

// Three steps on each of several meshes after one another.
TEST_P(Ranks, AnyMeshResumesAny) {
  RunConfig config = config_of(folder_, GetParam(), {.name = "chain"});
  config.steps = 0;
  double first = 0, last = 0;
  for (const Way& way : kWays) {
    way.put(config);
    config.steps += 3;
    const TrainResult result = train(config, {.on_step = [&](const RunState& run, const StepResult& r) {
                                       if (run.step == 1) first = r.loss;
                                     }});
    EXPECT_EQ(result.run.step, config.steps) << way.name;
    last = result.last_loss;
  }
  EXPECT_LT(last, first);
}

TEST_P(Ranks, AStopIsAgreedOn) {
  RunConfig config = config_of(folder_, GetParam(), kWays[3]);
  int64_t steps = 0;
  const TrainResult result =
      train(config, {.on_step = [&](const RunState& run, const StepResult&) { steps = run.step; },
                     .stop = [&] { return steps == 4; }});
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.checkpoint, checkpoint_folder(config.out, 4));
}

// An error of rank 0 ends the others, and is what the run ends with.
TEST_P(Ranks, TheFirstErrorEndsTheRun) {
  RunConfig config = config_of(folder_, GetParam(), kWays[1]);
  EXPECT_THROW(train(config, {.on_step =
                                  [](const RunState& run, const StepResult&) {
                                    if (run.step == 2) throw std::runtime_error("stopped");
                                  }}),
               std::runtime_error);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Ranks, testing::Values("fp32", "fp8-delayed"));

TEST(Ranks, WeightsAloneKnowNoMesh) {
  TempFolder folder;
  RunConfig config = config_of(folder, "fp8-delayed", {.name = "one"});
  config.steps = 1;
  const std::string whole = train(config).checkpoint;
  config.shard_bytes = kSmallShard;
  for (const char* content : {"weights", "weights-bf16"}) {
    config.checkpoint_content = content;
    RunConfig mesh = config;
    kEight.put(mesh);
    const auto files = checkpoint_bytes(save_again(mesh, whole, folder.file(fmt::format("mesh {}", content))));
    EXPECT_GT(files.size(), 4u);
    EXPECT_TRUE(files == checkpoint_bytes(save_again(config, whole, folder.file(content)))) << content;
  }
}

// A disk that is full after any number of bytes, for whichever rank comes to them.
TEST(Ranks, AFullDiskLeavesThePreviousCheckpoint) {
  TempFolder folder;
  RunConfig config = config_of(folder, "fp32", {.name = "one"});
  config.steps = 1;
  const std::string whole = train(config).checkpoint;
  kWays[6].put(config);
  config.shard_bytes = kSmallShard;
  const std::string out = folder.file("mesh"), saved = save_again(config, whole, out);
  const auto files = verify_folder(saved).files;
  int64_t bytes = 0;
  for (const ManifestFile& file : files) bytes += file.bytes;
  for (const int64_t room : {int64_t{0}, bytes / 2, bytes - 1, bytes + 1}) {  // the last: for all but the manifest
    inject_write_fault(room, ENOSPC);
    const std::string message = error_of([&] { save_again(config, whole, out); });
    inject_write_fault(-1, 0);
    EXPECT_TRUE(std::regex_search(message, std::regex("^rank [0-3] of 4 on [^ ]+: .*the disk is full or over quota")))
        << room << ": " << message;
    EXPECT_EQ(list_folder(out + "/checkpoints"), std::vector<std::string>{"step_00000000"}) << room;
    EXPECT_EQ(verify_folder(saved).files, files) << room;
  }
}

TEST(Ranks, AFolderThatARankDoesNotSeeIsRefused) {
  TempFolder folder;
  const auto check = [&](const char* of_last) {
    return error_of([&] {
      run_thread_ranks({{1, 3, 1, 1}}, [&](Communicator& rank) {
        check_shared(rank, folder.file(rank.rank() == 2 ? of_last : "out"));
      });
    });
  };
  EXPECT_EQ(check("out"), "(no error)");
  const std::string refused = check("elsewhere");
  EXPECT_TRUE(refused.starts_with("rank 2 of 3 on ")) << refused;
  EXPECT_NE(refused.find("does not see the folder"), std::string::npos) << refused;
  EXPECT_TRUE(list_folder(folder.file("out")).empty());
}

TEST(Ranks, WhatDoesNotDivideIsRefused) {
  TempFolder folder;
  RunConfig config = config_of(folder, "fp32", {.name = "data 3", .data = 3});
  try {
    train(config);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("parallel.data=3 ranks cannot share equally: want a multiple of"), std::string::npos)
        << error.message();
    EXPECT_NE(error.message().find("parallel.data among 1, 2, 4"), std::string::npos) << error.message();
  }
}

TEST(Ranks, FewerGpusThanRanksAreRefused) {
  TempFolder folder;
  RunConfig config = config_of(folder, "fp32", {.name = "data 64", .data = 64});
  config.global_batch = 64 * config.micro_batch;
  const std::string error = error_of([&] { train(config, {.target = h200_target()}); });
  for (const char* part : {"parallel.data=64 x parallel.context=1 are 64", " GPUs ", ": want "})
    EXPECT_NE(error.find(part), std::string::npos) << error;
  EXPECT_FALSE(path_exists(config.out));
}

// Ranks as processes whose plans are not the same, as on machines of unlike devices.
TEST(Ranks, UnlikePlansAreRefusedBeforeTheFirstStep) {
  TempFolder folder;
  RunConfig config = config_of(folder, "fp32", kWays[2]);
  const std::string port = std::to_string(free_port());
  std::vector<pid_t> children;
  for (const char* rank : {"0", "1"}) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    const std::pair<const char*, const char*> variables[] = {{"RANK", rank},
                                                             {"LOCAL_RANK", rank},
                                                             {"WORLD_SIZE", "2"},
                                                             {"LOCAL_WORLD_SIZE", "2"},
                                                             {"MASTER_ADDR", "127.0.0.1"},
                                                             {"MASTER_PORT", port.c_str()}};
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    const Target target = *rank == '0' ? cpu_target() : interpreter_target();
    write_file(folder.file(rank), error_of([&] { train(config, {.target = target}); }));
    _exit(0);
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  for (const char* rank : {"0", "1"}) {
    const std::string error = read_file(folder.file(rank));
    EXPECT_TRUE(error.starts_with("plan: rank 1 of 2 differs from rank 0: line ")) << error;
  }
  EXPECT_FALSE(path_exists(config.out + "/log.jsonl"));
}

}  // namespace
}  // namespace octet
