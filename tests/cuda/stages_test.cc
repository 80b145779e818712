// Runs whose stages have a GPU each against the run on one: the same bits, and an end when a rank fails.
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "cuda/gpu_ranks.h"
#include "system/tiny.h"
#include "train/trainer.h"

namespace octet {
namespace {

class StagesOnGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_ranks(Wire::kNccl, {{2, 1, 1, 1}}); !why.empty()) GTEST_SKIP() << why;
    set_log_level(LogLevel::kWarning);
  }
  RunConfig config_of(const std::string& name, const char* recipe, int64_t stages, int64_t chunks = 1) {
    RunConfig config = tiny_config(folder_, recipe, "llama");
    config.device = "cuda", config.deterministic = true;
    config.layers = 4, config.steps = 4, config.eval_interval = 2;
    config.global_batch = 8 * config.micro_batch;
    config.optimizer.clip = 0;
    config.pipeline = stages, config.chunks = chunks;
    config.out = folder_.file(name + recipe);
    return config;
  }
  TempFolder folder_;
};

TEST_F(StagesOnGpus, TrainAsOneBitForBit) {
  struct Trained {
    std::vector<double> losses;
    std::map<std::string, std::string> files;
  };
  const auto trained = [&](const RunConfig& config) {
    Trained made;
    const TrainResult result =
        train(config, {.on_step = [&](const RunState&, const StepResult& r) { made.losses.push_back(r.loss); }});
    made.losses.push_back(result.last_metric);
    made.files = checkpoint_bytes(result.checkpoint);
    return made;
  };
  for (const char* recipe : {"bf16", "fp8-current"}) {
    const Trained one = trained(config_of("one", recipe, 1));
    for (const bool peer_memory : {true, false}) {
      for (const int64_t chunks : {1, 2}) {
        SCOPED_TRACE(fmt::format("{}, {} chunks, {}", recipe, chunks, peer_memory ? "peers" : "NCCL"));
        RunConfig config = config_of(fmt::format("{}{}", chunks, peer_memory), recipe, 2, chunks);
        config.peer_memory = peer_memory;
        const Trained stages = trained(config);
        EXPECT_TRUE(stages.files == one.files);
        EXPECT_EQ(stages.losses, one.losses);  // of steps, and of the last evaluation
      }
    }
  }
}

TEST_F(StagesOnGpus, EndWhenARankFails) {
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    train(config_of("fails", "bf16", 2), {.on_step = [](const RunState& at, const StepResult&) {
            check(at.step < 2, ErrorCode::kIo, "the disk is full");
          }});
  } catch (const Error& error) {
    message = error.message();
  }
  EXPECT_NE(message.find("the disk is full"), std::string::npos) << message;
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 30);
}

}  // namespace
}  // namespace octet
