// Messages of a run that cannot continue: the first non-finite values, and settings that fit the memory.
#include "train/diagnose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "system/tiny.h"
#include "train/batches.h"
#include "train/checkpoint.h"
#include "train/trainer.h"
#include "weights/weights.h"

namespace octet {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void fill_state(Executor& executor, const std::string& name, float value) {
  const StateEntry* entry = executor.program().find_state(name);
  ASSERT_NE(entry, nullptr) << name;
  const std::vector<float> values(static_cast<size_t>(entry->type.shape.elements()), value);
  executor.write_state(name, std::as_bytes(std::span(values)));
}

class Diagnose : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }
  TempFolder folder_;
};

TEST_P(Diagnose, NamesTheLayerWhereTheForwardPassOverflows) {
  const RunConfig config = tiny_config(folder_, GetParam(), "llama");
  const LanguageModel model(resolve_model(config, 0), config);
  const StepperOptions options = stepper_options(config, target_of(Device::kCpu));
  Stepper stepper(model, options);
  initialize_weights(stepper.executor(), 7);
  BatchPacker packer(config.micro_batch, config.sequence_length, false);
  for (int s = 0; s < config.micro_batch; ++s) packer.add(std::vector<int32_t>(17, 3 + s), {0});
  const Batch batch = packer.finish();
  EXPECT_EQ(first_non_finite_value(model, options, stepper.executor(), batch), "");
  for (const char* linear : {"gate", "up"})  // their product, and nothing before it, is beyond float32 and bf16
    fill_state(stepper.executor(), fmt::format("layers.1.mlp.{}.weight", linear), 1e30f);
  const std::string found = first_non_finite_value(model, options, stepper.executor(), batch);
  EXPECT_TRUE(found.starts_with("layers.1.mlp.")) << found;
}

TEST_P(Diagnose, NamesTheGradientNearestToTheLoss) {
  const RunConfig config = tiny_config(folder_, GetParam());
  Stepper stepper(LanguageModel(resolve_model(config, 0), config), stepper_options(config, target_of(Device::kCpu)));
  EXPECT_EQ(last_non_finite_gradient(stepper.executor()), "");
  for (const char* param : {"embed.weight", "layers.0.mlp.up.weight"})
    fill_state(stepper.executor(), std::string("grad.") + param, kNan);
  EXPECT_EQ(last_non_finite_gradient(stepper.executor()), "layers.0.mlp.up.weight");
}

INSTANTIATE_TEST_SUITE_P(Recipes, Diagnose, testing::Values("fp32", "bf16", "fp8-current"), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// The weights are those of the last step that was taken: they are kept, and the run says where it went wrong.
TEST(Diagnosis, ARunThatStopsForNonFiniteStepsKeepsItsWeights) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp32");
  config.optimizer.lr = config.optimizer.min_lr = 1e30;
  config.optimizer.warmup_steps = 0;
  config.max_skipped_steps = 3;
  config.eval_interval = 0;
  config.checkpoint_interval = 0;
  try {
    train(config);
    FAIL() << "non-finite gradients went unnoticed";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find(", first in the forward pass, "), std::string::npos) << error.message();
    const std::optional<std::string> kept = newest_sound_checkpoint(config.out);
    ASSERT_TRUE(kept.has_value());
    EXPECT_NE(read_file(config.out + "/log.jsonl").find("first in the forward pass, "), std::string::npos);
    EXPECT_NE(error.message().find(*kept), std::string::npos) << error.message();
  }
}

TEST(Diagnosis, SettingsThatFitAreNamedWithTheirBytes) {
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp8-current");
  config.micro_batch = config.global_batch = 64;
  const LanguageModel model(resolve_model(config, 0), config);
  Target target = target_of(Device::kCpu);
  target.fp8_tn_only = true;
  const std::string all = settings_that_fit(model, config, target, int64_t{1} << 40);
  for (const char* setting : {"precision.transposes=on-demand needs ", "recompute=selective needs ",
                              "train.micro_batch=32 with train.global_batch=64 needs "})
    EXPECT_NE(all.find(setting), std::string::npos) << all;
  EXPECT_EQ(settings_that_fit(model, config, target, 1000), "");
}

}  // namespace
}  // namespace octet
