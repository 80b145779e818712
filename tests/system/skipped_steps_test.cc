// Steps and evaluations none of whose tokens counts as a target.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/log.h"
#include "system/tiny.h"
#include "train/trainer.h"

namespace octet {
namespace {

constexpr int64_t kLength = 16, kSamples = 8;

// One document of kSamples samples; the tokens of `counting_samples` are targets.
void write_masked(const std::string& prefix, const std::vector<int64_t>& counting_samples) {
  DatasetWriter writer(prefix, TokenType::kU16);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i <= kSamples * kLength; ++i) ids.push_back(static_cast<int32_t>(i * i % 61));
  std::vector<uint8_t> counts(ids.size());
  for (const int64_t sample : counting_samples)
    for (int64_t i = 1; i <= kLength; ++i) counts[static_cast<size_t>(sample * kLength + i)] = 1;
  writer.append(ids, counts);
  writer.end_document();
  writer.commit();
}

// Eight steps of one sample each, at one learning rate.
RunConfig masked_config(const TempFolder& folder, const std::string& recipe) {
  RunConfig config = tiny_config(folder, recipe);
  config.train_data = folder.file("masked"), config.validation_data.clear();
  config.sequence_length = kLength, config.micro_batch = config.global_batch = 1, config.steps = kSamples;
  config.optimizer.lr = config.optimizer.min_lr = 1e-2, config.optimizer.warmup_steps = 0;
  config.optimizer.clip = 0;
  config.checkpoint_interval = 1, config.checkpoint_keep = 100;
  return config;
}

// The largest change of a weight between two files of the same header.
double largest_change(const std::string& before, const std::string& after) {
  uint64_t header = 0;
  std::memcpy(&header, before.data(), sizeof header);
  EXPECT_EQ(before.substr(0, 8 + header), after.substr(0, 8 + header));
  double most = 0;
  for (size_t at = 8 + header; at + 4 <= before.size(); at += 4) {
    float a = 0, b = 0;
    std::memcpy(&a, before.data() + at, 4);
    std::memcpy(&b, after.data() + at, 4);
    most = std::max(most, std::abs(static_cast<double>(a) - b));
  }
  return most;
}

// One of eight steps has targets: it alone changes states, and as the first update of Adam it moves weights by lr.
TEST(SkippedSteps, AStepWithoutTargetsChangesNothingAndCountsAsNoUpdate) {
  set_log_level(LogLevel::kOff);
  for (const char* recipe : {"fp32", "fp8-delayed"}) {
    SCOPED_TRACE(recipe);
    TempFolder folder;
    write_masked(folder.file("masked"), {5});
    RunConfig config = masked_config(folder, recipe);
    int64_t update = 0;
    const auto watch = [&](const RunState& run, const StepResult& step) {
      EXPECT_EQ(std::isnan(step.loss), step.targets == 0);
      if (step.targets > 0) update = run.step;
    };
    const TrainResult whole = train(config, {.on_step = watch});
    ASSERT_GT(update, 2) << "choose another seed";
    ASSERT_LT(update, kSamples);
    EXPECT_EQ(whole.run.skipped_steps, kSamples - 1);
    EXPECT_EQ(whole.run.targets, kLength);
    EXPECT_TRUE(std::isfinite(whole.last_loss));
    auto before = checkpoint_bytes(checkpoint_folder(config.out, 1));
    for (int64_t step = 2; step <= kSamples; ++step) {
      auto after = checkpoint_bytes(checkpoint_folder(config.out, step));
      EXPECT_EQ(before == after, step != update) << step;
      if (step == update) {
        EXPECT_NEAR(largest_change(before["model.safetensors"], after["model.safetensors"]), 1e-2, 3e-4)
            << "beside lr the weight decay of matrices";
      }
      before = std::move(after);
    }
    const std::string log = read_file(config.out + "/log.jsonl");
    EXPECT_EQ(log.find("\"loss\":0,"), std::string::npos) << log;
    EXPECT_NE(log.find(R"({"kind":"skip","step":1,"text":"no targets"})"), std::string::npos) << log;
    config.out = folder.file("parts"), config.steps = update - 1;
    train(config);
    config.steps = kSamples;
    EXPECT_TRUE(checkpoint_bytes(train(config).checkpoint) == before) << "resumed between skipped steps";
  }
}

TEST(SkippedSteps, AValidationWithoutTargetsIsNoNumberAndNeverBest) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  write_masked(folder.file("masked"), {0, 1, 2, 3, 4, 5, 6, 7});
  write_masked(folder.file("none"), {});
  RunConfig config = masked_config(folder, "fp32");
  config.validation_data = folder.file("none"), config.eval_interval = 4;
  testing::internal::CaptureStderr();
  const TrainResult result = train(config);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(std::isnan(result.last_metric));
  EXPECT_EQ(result.run.best_step, 0);
  EXPECT_EQ(result.run.skipped_steps, 0);
  EXPECT_NE(said.find("all tokens of data.validation=" + config.validation_data), std::string::npos) << said;
  const std::string log = read_file(config.out + "/log.jsonl");
  EXPECT_NE(log.find(R"({"kind":"eval","step":4,"loss":"nan","perplexity":"nan","tokens":0,)"), std::string::npos)
      << log;
}

}  // namespace
}  // namespace octet
