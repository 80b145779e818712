#include "tune/evaluate.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/json.h"
#include "base/testing/test_error.h"
#include "tune/paper_plan.h"

namespace octet {
namespace {

std::vector<nlohmann::json> answers(const std::string& rows, const RowOptions& options = {}) {
  std::istringstream in(rows);
  std::vector<nlohmann::json> all;
  evaluate_rows(in, h200_target(), options,
                [&](const std::string& line) { all.push_back(parse_json(line, "answer")); });
  return all;
}

TEST(Evaluate, AnswersRowsInTheirOrder) {
  const auto all = answers(
      R"({"id": "b", "gpus": 2, "model.size": "gpt2-124m", "train.micro_batch": 2, "train.global_batch": 8})"
      "\n\n"
      R"({"id": 7, "gpus": 4, "model.size": "llama2-7b", "parallel.tensor": 2, "parallel.sequence": true, )"
      R"("train.micro_batch": 1, "train.global_batch": 16, "precision.recipe": "bf16", "recompute": "selective"})");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].at("id"), "b");
  EXPECT_EQ(all[1].at("id"), 7);
  RunConfig config;
  config.model_size = "llama2-7b", config.tensor = 2, config.sequence = true, config.data_ranks = 2;
  config.micro_batch = 1, config.global_batch = 16, config.recipe = "bf16", config.recompute = "selective";
  const Prediction whole = PaperPlanner(h200_target()).plan_whole(config);
  EXPECT_EQ(all[1].at("fits"), true);
  EXPECT_EQ(all[1].at("memory_bytes"), whole.bytes());
  EXPECT_NEAR(all[1].at("step_seconds").get<double>(), whole.seconds(), 2e-3 * whole.seconds());
  EXPECT_NEAR(all[1].at("tokens_per_second").get<double>() * all[1].at("step_seconds").get<double>(), 16 * 1024, 1);
  EXPECT_EQ(all[1].at("reason"), "");
}

// The same row by itself and among others.
TEST(Evaluate, RowsDoNotDependOnOthers) {
  const std::string row = R"({"id": 1, "gpus": 8, "model.size": "gpt2-124m", "train.global_batch": 64})";
  const std::string other = R"({"id": 1, "gpus": 8, "model.size": "llama2-7b", "train.global_batch": 64})";
  EXPECT_EQ(answers(row + "\n" + other)[0], answers(other + "\n" + row)[1]);
}

TEST(Evaluate, OneWrongRowDoesNotEndTheOthers) {
  const std::string good = R"({"id": 3, "gpus": 1, "model.size": "gpt2-124m"})";
  for (const auto& [row, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"id": 1, "gpus": 1, "model.sise": "gpt2-124m"})", "model.size"},
           {R"({"id": 1, "model.size": "gpt2-124m"})", "gpus: not given"},
           {R"({"id": 1, "gpus": 0})", "gpus: 0"},
           {R"({"id": 1, "gpus": 3, "parallel.tensor": 2})", "no multiple of"},
           {R"({"id": 1, "gpus": 4, "parallel.data": 2, "train.global_batch": 8})", "set it to 4"},
           {R"({"id": 1, "gpus": 8, "parallel.tensor": 8, "train.global_batch": 8})", "heads do not divide"},
           {R"({"id": 1, "gpus": 1, "train.micro_batch": "many"})", "train.micro_batch"},
           {R"({"id": 1, "gpus": 1, "recompute": {}})", "want text, a number"}}) {
    const auto all = answers(std::string(row) + "\n" + good);
    ASSERT_EQ(all.size(), 2u) << row;
    EXPECT_EQ(all[0].at("fits"), false);
    EXPECT_TRUE(all[0].at("memory_bytes").is_null());
    EXPECT_NE(all[0].at("reason").get<std::string>().find(reason), std::string::npos) << all[0];
    EXPECT_EQ(all[1].at("fits"), true);
  }
  EXPECT_NE(error_of([&] { answers(good + "\n{\"id\": "); }).find("rows:2"), std::string::npos);
  EXPECT_NE(error_of([&] { answers("[1]"); }).find("want an object"), std::string::npos);
}

TEST(Evaluate, SaysHowManyBytesAreMissing) {
  const auto all =
      answers(R"({"id": 1, "gpus": 2, "model.size": "gpt3-175b", "train.micro_batch": 1, "parallel.pipeline": 2, )"
              R"("train.global_batch": 4})");
  EXPECT_EQ(all[0].at("fits"), false);
  EXPECT_NE(all[0].at("reason").get<std::string>().find(
                fmt::format("{} bytes of", all[0].at("memory_bytes").get<int64_t>() - h200_target().memory_bytes)),
            std::string::npos)
      << all[0];
}

}  // namespace
}  // namespace octet
