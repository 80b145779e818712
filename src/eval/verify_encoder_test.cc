// Goldens of encoders, made with transformers: by the interpreter, the CPU's kernels and every recipe.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "eval/verify.h"
#include "exec/executor.h"

namespace octet {
namespace {

class EncoderGoldens : public testing::TestWithParam<const char*> {};

TEST_P(EncoderGoldens, OutputsOfTheInterpreterAndTheKernels) {
  const std::string folder = test_data_path(GetParam());
  if (folder.empty()) GTEST_SKIP() << missing_test_data(GetParam());
  for (const bool interpret : {true, false}) {
    const VerifyReport report = verify_encoder(folder, parse_recipe("fp32"), cpu_target(), interpret);
    EXPECT_LE(report.max_logit_error, 2e-4) << interpret;  // float32 sums in another order
    EXPECT_GT(report.logits, 0);
  }
  Target padding = cpu_target();  // pads vocabularies of 320 tokens to 384 rows
  padding.vocab_multiple = 128;
  EXPECT_TRUE(verify_inference(folder, parse_recipe("fp32"), padding).passed({2e-4}));
}

TEST_P(EncoderGoldens, RecipesStayWithinTheirTolerance) {
  const std::string folder = test_data_path(GetParam());
  if (folder.empty()) GTEST_SKIP() << missing_test_data(GetParam());
  for (const char* name : {"bf16", "fp8-current"}) {
    const Recipe recipe = parse_recipe(name);
    const VerifyReport report = verify_encoder(folder, recipe, cpu_target());
    EXPECT_TRUE(report.passed(logit_tolerance(recipe))) << name << ": relative " << report.relative_error;
    EXPECT_FALSE(report.passed(logit_tolerance(parse_recipe("fp32")))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, EncoderGoldens,
                         testing::Values("hf_goldens/bert", "serving/experts_encoders/bert_cross_encoder",
                                         "serving/experts_encoders/bert_model",
                                         "serving/experts_encoders/bert_pretraining",
                                         "serving/experts_encoders/roberta_model",
                                         "serving/experts_encoders/qwen3_embedding"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

TEST(VerifyEncoder, NamesWhatItCompares) {
  const std::string model = test_data_path("serving/experts_encoders/bert_model");
  if (model.empty()) GTEST_SKIP() << missing_test_data("bert_model");
  const VerifyReport report = verify_encoder(model, parse_recipe("fp32"), cpu_target());
  EXPECT_EQ(report.compared, (std::vector<std::string>{"cls", "cls_normalized", "last", "last_hidden_state", "mean",
                                                       "mean_normalized"}));
  EXPECT_NE(std::ranges::find(report.compared, report.worst), report.compared.end()) << report.worst;
}

// A decoder with "is_causal": false: logits of whole sequences, which those of the decoder are not.
TEST(VerifyEncoder, ABidirectionalDecodersLogits) {
  const std::string model = test_data_path("hf_goldens/qwen3");
  if (model.empty()) GTEST_SKIP() << missing_test_data("hf_goldens/qwen3");
  TempFolder folder;
  for (const char* file : {"model.safetensors", "expected.safetensors"})
    write_file(folder.file(file), read_file(model + "/" + file));
  std::string config = read_file(model + "/config.json");
  config.insert(config.find('{') + 1, R"("is_causal": false, )");
  write_file(folder.file("config.json"), config);
  const VerifyReport report = verify_inference(folder.path(), parse_recipe("fp32"), cpu_target());
  EXPECT_EQ(report.compared, std::vector<std::string>{"logits"});
  EXPECT_EQ(report.worst, "logits");
  EXPECT_GT(report.relative_error, 0.1);
}

TEST(VerifyEncoder, OutputsOfAnotherModelAreFarOff) {
  const std::string model = test_data_path("serving/experts_encoders/bert_pretraining");
  const std::string other = test_data_path("hf_goldens/bert");
  if (model.empty() || other.empty()) GTEST_SKIP() << missing_test_data("bert_pretraining");
  TempFolder mixed;
  for (const char* file : {"config.json", "model.safetensors"})
    write_file(mixed.file(file), read_file(model + "/" + file));
  write_file(mixed.file("expected.safetensors"), read_file(other + "/expected.safetensors"));
  const VerifyReport report = verify_encoder(mixed.path(), parse_recipe("fp32"), cpu_target());
  EXPECT_FALSE(report.passed({0.01}));
  EXPECT_GT(report.relative_error, 0.3);
}

}  // namespace
}  // namespace octet
