#include "train/classification.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "exec/executor.h"
#include "io/testing/word_piece_json.h"
#include "train/bert.h"
#include "train/trainer.h"

namespace octet {
namespace {

// A pretrained folder of 320 tokens, whose classifier begins afresh, and texts whose class is the animal.
class ClassificationRun : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kWarning);
    make_folders(folder_.file("vocabulary"));
    write_file(folder_.file("vocabulary/tokenizer.json"), word_piece_json());
    write_file(folder_.file("vocabulary/tokenizer_config.json"), "{}");
    const BertSequence s{
        .ids = {2, 57, 3, 60, 3}, .types = {0, 0, 0, 1, 1}, .positions = {1}, .labels = {58}, .is_next = true};
    write_bert_set(folder_.file("set"), {.vocab_size = 320, .tokenizer_path = folder_.file("vocabulary")}, {&s, 1});
    RunConfig config = default_settings("bert");
    config.hidden = 32, config.layers = 1, config.heads = 2, config.intermediate = 64, config.max_positions = 32;
    config.sequence_length = 32, config.micro_batch = 1, config.steps = 1, config.recipe = "fp32";
    config.train_data = folder_.file("set"), config.out = folder_.file("pretrained"), config.device = "cpu";
    pretrained_ = train(config).checkpoint;

    config_ = default_settings("classify");
    config_.model_from = pretrained_, config_.recipe = "fp32", config_.device = "cpu",
    config_.out = folder_.file("run");
    config_.sequence_length = 16, config_.micro_batch = 8, config_.steps = 120, config_.eval_interval = 40;
    config_.optimizer.lr = 3e-3, config_.dropout = 0;
    config_.train_data = write_lines("train", 40), config_.validation_data = write_lines("val", 20);
  }
  std::string write_lines(const std::string& name, int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i)
      lines += fmt::format("{{\"text\": \"the {}\", \"text_pair\": \"query {} ?\", \"label\": \"{}\"}}\n",
                           std::string(static_cast<size_t>(1 + i % 5), 'a'), i % 3 == 0 ? "cat" : "dog",
                           i % 3 == 0 ? "feline" : "canine");
    return write(name, lines);
  }
  std::string write(const std::string& name, const std::string& lines) const {
    write_file(folder_.file(name + ".jsonl"), lines);
    return folder_.file(name + ".jsonl");
  }
  std::string error_with(const std::string& lines) {
    config_.train_data = write("bad", lines);
    return error_of([&] { train(config_); });
  }
  TempFolder folder_;
  std::string pretrained_;
  RunConfig config_;
};

TEST_F(ClassificationRun, LearnsAndWritesAFolderThatIsEvaluated) {
  const TrainResult result = train(config_);
  EXPECT_EQ(result.metric.name, "accuracy");
  EXPECT_EQ(result.run.best_metric, 1);
  const auto config = parse_json(read_file(result.checkpoint + "/config.json"), "config.json");
  EXPECT_EQ(config.at("architectures").at(0), "BertForSequenceClassification");
  EXPECT_EQ(config.at("id2label").at("0"), "canine");
  EXPECT_EQ(config.at("label2id").at("feline"), 1);
  EXPECT_TRUE(path_exists(result.checkpoint + "/tokenizer.json"));
  const CompileOptions exact{.target = cpu_target(), .recipe = parse_recipe("fp32")};
  const ClassifierScores scores = evaluate_classifier(result.checkpoint, config_.validation_data, 0, 4, exact);
  EXPECT_EQ(scores.texts, 20);
  EXPECT_EQ(scores.values[0], 1);
  EXPECT_EQ(scores.values[1], 1);
  EXPECT_NEAR(scores.values[2], evaluate_classifier(result.checkpoint, config_.validation_data, 16, 7, exact).values[2],
              1e-6);
  // The folder's labels hold where a run begins from it.
  config_.model_from = result.checkpoint, config_.out = folder_.file("again"), config_.steps = 1;
  config_.optimizer.lr = config_.optimizer.min_lr = 0;
  EXPECT_EQ(train(config_).run.best_metric, 1);
  EXPECT_NE(error_with("{\"text\": \"the cat\", \"label\": \"bird\"}\n").find("'bird' is none of the model's: canine"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              evaluate_classifier(pretrained_, config_.validation_data, 0, 4, exact);
            }).find("describes no sequence classification"),
            std::string::npos);
}

TEST_F(ClassificationRun, ScoresAreThoseOfTheirDefinition) {
  const std::unique_ptr<Classification> two = Classification::open(config_);
  // Loss, right, texts; of canine and feline: right, said, are. F1 of feline: 2 x 2 / (3 + 4).
  const std::vector<double> scores =
      two->join({{1, 2}, {2, 3}, {4, 4}, {2, 1}, {2, 0}, {3, 2}, {1, 2}, {3, 1}, {3, 1}}, 8);
  EXPECT_DOUBLE_EQ(scores[0], 5.0 / 8);
  EXPECT_DOUBLE_EQ(scores[1], 2 * 2 / 7.0);
  EXPECT_DOUBLE_EQ(scores[2], 3.0 / 8);
}

TEST_F(ClassificationRun, NumbersAreLabelsToo) {
  std::string lines;
  for (int i = 0; i < 24; ++i)
    lines += fmt::format("{{\"text\": \"{} the\", \"label\": {}}}\n", i % 2 ? "cat" : "dog", 2 * (i % 2));
  config_.train_data = config_.validation_data = write("numbers", lines);
  const TrainResult result = train(config_);
  const auto config = parse_json(read_file(result.checkpoint + "/config.json"), "config.json");
  EXPECT_EQ(config.at("id2label").size(), 3u);
  EXPECT_EQ(config.at("id2label").at("2"), "LABEL_2");
  EXPECT_EQ(result.run.best_metric, 1);
}

TEST_F(ClassificationRun, RefusesWhatItCannotTrainOn) {
  const std::string good = "{\"text\": \"cat\", \"label\": \"a\"}\n";
  const std::pair<const char*, const char*> cases[] = {
      {"{\"text\": \"cat\"}\n", "bad.jsonl:2: \"label\" is null (want a name, or a whole number from 0 on)"},
      {"{\"text\": \"cat\", \"label\": 0.5}\n", "\"label\" is 0.5"},
      {"{\"text\": \"\", \"label\": \"b\"}\n", "\"text\" is empty"},
      {"{\"text\": 3, \"label\": \"b\"}\n", "bad.jsonl:2"},
      {"{\"text\": \"cat\", \"label\": 1}\n", "want all names, or all numbers"},
      {"", "all labels are 'a': there is nothing to tell apart"}};
  for (const auto& [line, wanted] : cases) {
    const std::string error = error_with(good + line);
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
  }
  std::string vocabulary = word_piece_json();
  vocabulary.replace(vocabulary.find("\"[unused319]\": 319"), 18, "\"zebra\": 400");
  write_file(pretrained_ + "/tokenizer.json", vocabulary);
  const std::string outside = error_with(good + "{\"text\": \"zebra\", \"label\": \"b\"}\n");
  EXPECT_NE(outside.find("bad.jsonl:2: has token 400, the model's vocabulary 320"), std::string::npos) << outside;
  config_.model_from = "", config_.model_size = "bert-base";
  EXPECT_NE(error_with(good).find("set model.from to its folder"), std::string::npos);
}

}  // namespace
}  // namespace octet
