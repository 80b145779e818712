// Runs on several ranks, as threads, against the run of one: losses, checkpoints that know no mesh, resuming, refusals.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/testing/test_error.h"
#include "dist/communicator.h"
#include "dist/socket.h"
#include "system/tiny.h"
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
};

RunConfig config_of(TempFolder& folder, const char* recipe, const Way& way) {
  RunConfig config = tiny_config(folder, recipe);
  config.dropout = 0.1;
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
    losses.push_back(result.last_eval_loss);
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

// A state saved by one rank, loaded and saved again by a mesh, is the same files.
TEST_P(Ranks, CheckpointsKnowNoMesh) {
  RunConfig config = config_of(folder_, GetParam(), {.name = "one"});
  config.steps = 3;
  const std::string saved = train(config).checkpoint;
  const auto expected = checkpoint_bytes(saved);
  for (const Way& way : kWays) {
    RunConfig other = config_of(folder_, GetParam(), way);
    const std::string out = folder_.file(std::string("again ") + way.name);
    const auto work = [&](Communicator& rank) {
      StepperOptions options = stepper_options(other, cpu_target());
      options.ranks = other.mesh().ranks() > 1 ? &rank : nullptr;
      Stepper stepper(resolve_model(other, 0), options);
      read_checkpoint(saved, stepper.executor());
      CheckpointContent content = checkpoint_content(other);
      content.model = resolve_model(other, 0);
      write_checkpoint(out, stepper.executor(), content, rank.rank() == 0);
    };
    run_thread_ranks(other.mesh(), work);
    EXPECT_TRUE(checkpoint_bytes(checkpoint_folder(out, 0)) == expected) << way.name;
  }
}

TEST_P(Ranks, ResumeIsUninterrupted) {
  for (const Way& way : {kWays[1], kWays[3]}) {
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

TEST(Ranks, WhatDoesNotDivideIsRefused) {
  TempFolder folder;
  RunConfig config = config_of(folder, "fp32", {.name = "data 3", .data = 3});
  try {
    train(config);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("parallel.data=3 ranks cannot share alike: want a multiple of"), std::string::npos)
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
  const std::string port = std::to_string(port_of(listen_at("127.0.0.1", 0)));
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
