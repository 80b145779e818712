// Runs of PEFT replayed: an adapter trained on its frozen base.
#include "train/verify_training.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "exec/executor.h"

namespace octet {
namespace {

const CompileOptions kExact = {.target = cpu_target(), .recipe = parse_recipe("fp32")};

void expect_replayed(const std::string& name, bool has_gradients) {
  const std::string folder = test_data_path("adapt/" + name);
  if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt");
  const TrainingReport report = verify_training(folder, kExact);
  EXPECT_EQ(report.losses.size(), 6u) << name;
  EXPECT_LE(report.max_loss_error, 1e-4) << name;
  EXPECT_LE(report.max_grad_norm_error, 1e-4) << name;
  EXPECT_EQ(report.has_gradients, has_gradients) << name;
  EXPECT_LE(report.max_gradient_error, 1e-4) << name << " " << report.worst_gradient;
}

TEST(VerifyTraining, AdaptersTrainAsInPeft) {
  for (const std::string name : {"lora_qo", "lora_patterns_rs", "lora_all_but_one", "lora_embedding",
                                 "lora_saved_norm_head", "dora_vu", "lora_gpt2", "lora_bloom_fused", "lora_qwen2_bias",
                                 "lora_experts", "lora_new_tokens", "prompt_tuning", "p_tuning_mlp", "p_tuning_lstm"})
    expect_replayed("adapters/" + name, true);
}

TEST(VerifyTraining, ExamplesInUnequalMicroBatches) { expect_replayed("chat/sft_lora", false); }

TEST(VerifyTraining, PairsOfAnswersAsInTheirScript) {
  for (const std::string name : {"dpo_sigmoid", "dpo_ipo"}) {
    const std::string folder = test_data_path("adapt/chat/" + name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt");
    const TrainingReport report = verify_training(folder, kExact);
    EXPECT_EQ(report.losses.size(), 6u) << name;
    EXPECT_LE(report.max_loss_error, 1e-4) << name;
    EXPECT_LE(report.max_grad_norm_error, 1e-4) << name;
    EXPECT_FALSE(report.worst_metric.empty()) << name;
    EXPECT_LE(report.max_metric_error, 1e-4) << name << " " << report.worst_metric;
  }
}

TEST(VerifyTraining, AModelBesideItsExpectedTraining) {
  const std::string golden = test_data_path("hf_goldens/gpt2");
  if (golden.empty()) GTEST_SKIP() << missing_test_data("hf_goldens/gpt2");
  TempFolder folder;
  make_folders(folder.file("model")), make_folders(folder.file("run"));
  for (const char* name : {"config.json", "model.safetensors"})
    write_file(folder.file(std::string("model/") + name), read_file(golden + "/" + name));
  write_file(folder.file("run/expected.safetensors"), read_file(golden + "/expected.safetensors"));
  std::string training = read_file(golden + "/expected_training.json");
  training.replace(training.find('{'), 1, "{\"base\": \"../model\", \"lr\": 0.001, \"betas\": [0.9, 0.95],");
  write_file(folder.file("run/expected_training.json"), training);
  const TrainingReport report = verify_training(folder.file("run"), kExact);
  EXPECT_LE(report.max_loss_error, 1e-4);
  training.replace(training.find("0.001"), 5, "0.100");
  write_file(folder.file("run/expected_training.json"), training);
  EXPECT_GT(verify_training(folder.file("run"), kExact).max_loss_error, 1e-4) << "the rate is read";
  write_file(folder.file("run/expected_training.json"),
             "{\"objective\": \"grpo\", \"losses\": [1], \"grad_norms\": [1], \"base\": \"../model\"}");
  EXPECT_NE(error_of([&] { verify_training(folder.file("run"), kExact); }).find("objective is grpo"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
