// Whole runs on a GPU: a step enqueued before the previous results are read has the bits of one that waits.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/log.h"
#include "exec/executor.h"
#include "system/tiny.h"
#include "train/trainer.h"

namespace octet {
namespace {

class CudaRun : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda_available(&why)) GTEST_SKIP() << why;
    set_log_level(LogLevel::kWarning);
    config_ = tiny_config(folder_, GetParam());
    config_.device = "cuda", config_.deterministic = true, config_.dropout = 0.1;
    config_.global_batch = 3 * config_.micro_batch;
    config_.steps = 12, config_.eval_interval = 0, config_.checkpoint_interval = 0, config_.checkpoint_keep = 100;
    config_.validation_data.clear();
  }
  TrainResult run(const std::string& out, int64_t checkpoint_interval, TrainHooks hooks = {}) {
    config_.out = folder_.file(out), config_.checkpoint_interval = checkpoint_interval;
    losses_.clear();
    hooks.on_step = [this](const RunState& at, const StepResult& step) {
      EXPECT_EQ(at.step, std::ssize(losses_) + 1);
      losses_.push_back(step.loss);
    };
    return train(config_, hooks);
  }
  TempFolder folder_;
  RunConfig config_;
  std::vector<double> losses_;
};

TEST_P(CudaRun, LeadsOnWithTheSameBits) {
  const TrainResult waits = run("waits", 1);  // a checkpoint after every step: none begins before
  const std::vector<double> expected = losses_;
  const TrainResult leads = run("leads", 0);
  EXPECT_EQ(losses_, expected);
  EXPECT_TRUE(checkpoint_bytes(leads.checkpoint) == checkpoint_bytes(waits.checkpoint));
}

// A started next step affects neither the checkpoint of a stopped run nor a run resumed from it.
TEST_P(CudaRun, StopsAndGoesOnBetweenSteps) {
  const TrainResult waits = run("waits", 1);
  const std::vector<double> expected = losses_;
  const TrainResult left = run("left", 0, {.stop = [this] { return losses_.size() == 7; }});
  EXPECT_TRUE(left.interrupted);
  EXPECT_EQ(left.run.step, 7);
  EXPECT_TRUE(checkpoint_bytes(left.checkpoint) == checkpoint_bytes(checkpoint_folder(folder_.file("waits"), 7)));
  std::vector<double> rest;
  const TrainResult resumed =
      train(config_, {.on_step = [&](const RunState&, const StepResult& step) { rest.push_back(step.loss); }});
  EXPECT_EQ(rest, std::vector<double>(expected.begin() + 7, expected.end()));
  EXPECT_TRUE(checkpoint_bytes(resumed.checkpoint) == checkpoint_bytes(waits.checkpoint));
}

INSTANTIATE_TEST_SUITE_P(Recipes, CudaRun, testing::Values("bf16", "fp8-current", "fp8-delayed"), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace octet
