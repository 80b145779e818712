// Resume is bit-exact: 20 steps equal 10, a new process' worth of state, and 10 more.
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "base/log.h"
#include "system/tiny.h"
#include "train/trainer.h"

namespace octet {
namespace {

struct Stop {};

class Resume : public testing::TestWithParam<const char*> {};

TEST_P(Resume, EqualsAnUninterruptedRun) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = tiny_config(folder, GetParam());
  config.dropout = 0.1;
  std::vector<double> whole, parts;
  TrainResult straight =
      train(config, {.on_step = [&](const RunState&, const StepResult& r) { whole.push_back(r.loss); }});
  config.out = folder.file("interrupted");
  // Dies in step 13: the checkpoint of step 10 is the last.
  TrainHooks dying{.on_step = [&](const RunState& run, const StepResult& r) {
    if (run.step == 13) throw Stop{};
    if (run.step <= 10) parts.push_back(r.loss);
  }};
  EXPECT_THROW(train(config, dying), Stop);
  TrainResult resumed =
      train(config, {.on_step = [&](const RunState&, const StepResult& r) { parts.push_back(r.loss); }});
  EXPECT_EQ(whole, parts);
  EXPECT_EQ(straight.run.best_loss, resumed.run.best_loss);
  EXPECT_EQ(straight.run.tokens, resumed.run.tokens);
  auto a = checkpoint_bytes(straight.checkpoint), b = checkpoint_bytes(resumed.checkpoint);
  ASSERT_EQ(a.size(), 3u);
  EXPECT_TRUE(a == b) << "weights, moments or scales differ";
}

// A step of many micro-batches that is left in the middle: the checkpoint is that of the step before, bit for bit.
TEST_P(Resume, AStepLeftInTheMiddleIsMadeAnew) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = tiny_config(folder, GetParam());
  config.global_batch = 8 * config.micro_batch;
  config.steps = 7, config.eval_interval = 0, config.validation_data.clear(), config.checkpoint_interval = 6;
  const TrainResult straight = train(config);
  const auto before = checkpoint_bytes(checkpoint_folder(config.out, 6)), after = checkpoint_bytes(straight.checkpoint);
  ASSERT_EQ(before.size(), 3u);
  config.out = folder.file("interrupted"), config.checkpoint_interval = 0;
  int64_t whole = 0, asked = 0;
  TrainHooks hooks{.on_step = [&](const RunState& run, const StepResult&) { whole = run.step; },
                   .stop = [&] { return whole == 6 && ++asked == 5; }};
  const TrainResult left = train(config, hooks);
  EXPECT_TRUE(left.interrupted);
  EXPECT_EQ(left.run.step, 6);
  EXPECT_EQ(asked, 5);
  EXPECT_EQ(left.checkpoint, checkpoint_folder(config.out, 6));
  EXPECT_TRUE(checkpoint_bytes(left.checkpoint) == before) << "weights, moments or scales differ";
  EXPECT_TRUE(checkpoint_bytes(train(config).checkpoint) == after);
}

TEST(Resume, ARunLeftInItsFirstStepLeavesNoCheckpoint) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp32");
  const TrainResult left = train(config, {.stop = [] { return true; }});
  EXPECT_TRUE(left.interrupted);
  EXPECT_EQ(left.checkpoint, "");
  EXPECT_TRUE(list_checkpoints(config.out).empty());
  EXPECT_EQ(train(config).run.step, config.steps);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Resume,
                         testing::Values("fp32", "bf16", "fp8-current", "fp8-delayed", "fp8-block", "auto"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

TEST(Resume, FallsBackOverADamagedCheckpoint) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "bf16");
  config.bias = false;  // a variant whose config.json says so
  TrainResult first = train(config);
  ASSERT_EQ(list_checkpoints(config.out).size(), 2u);
  std::string path = first.checkpoint + "/model.safetensors", bytes = read_file(path);
  bytes[bytes.size() / 2] ^= 1;
  write_file(path, bytes);
  auto sound = newest_sound_checkpoint(config.out);
  ASSERT_TRUE(sound.has_value());
  EXPECT_EQ(*sound, checkpoint_folder(config.out, 10));
  TrainResult again = train(config);  // repeats steps 11..20
  EXPECT_EQ(again.last_loss, first.last_loss);
  EXPECT_EQ(again.run.step, 20);
}

TEST(Resume, RefusesOtherData) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp32");
  train(config);
  config.sequence_length = 8;
  config.steps = 30;
  try {
    train(config);
    FAIL() << "a resume on other data went through";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("resume=never"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace octet
