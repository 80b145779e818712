// A run that begins with a folder's weights (model.from): the folder is whole and its vocabulary is the data's.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "base/testing/test_error.h"
#include "io/corpus.h"
#include "io/tokenizer.h"
#include "system/tiny.h"
#include "train/trainer.h"

namespace octet {
namespace {

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kOff);
    std::string text;
    for (int i = 0; i < 200; ++i) text += "abcadbacbd";
    write_file(folder_.file("text.txt"), text);
    model_ = train(run_on("abcd", "first")).checkpoint;
  }

  // Training on the text by a vocabulary of these characters.
  RunConfig run_on(const std::string& characters, const std::string& name) {
    std::vector<std::string> list;
    for (char c : characters) list.emplace_back(1, c);
    prepare_corpus(*make_character_tokenizer(list),
                   {.inputs = {folder_.file("text.txt")}, .output = folder_.file(name), .threads = 1});
    RunConfig config = tiny_config(folder_, "fp32");
    config.train_data = folder_.file(name), config.validation_data.clear();
    config.steps = 1;
    config.out = folder_.file("run-" + name);
    return config;
  }
  RunConfig tuned(const std::string& characters, const std::string& name) {
    RunConfig config = run_on(characters, name);
    config.model_from = model_;
    config.vocab_size = config.hidden = config.layers = config.heads = config.intermediate = config.max_positions = 0;
    return config;
  }

  TempFolder folder_;
  std::string model_;
};

TEST_F(ModelFolder, ItsVocabularyIsTheDatas) {
  EXPECT_EQ(error_of([&] { train(tuned("abcd", "same")); }), "(no error)");
  EXPECT_EQ(error_of([&] { train(tuned("abcde", "longer")); }), "(no error)") << "the ids both know mean the same";
  const std::string refused = error_of([&] { train(tuned("abdc", "other")); });
  EXPECT_TRUE(holds(refused, "id 2 is \"c\" in the folder, \"d\" in the data (2 of 4 differ)")) << refused;
  EXPECT_TRUE(holds(refused, "characters-4-")) << refused;
  EXPECT_TRUE(holds(refused, "`octet data TEXT --tokenizer " + model_ + " --out PREFIX`")) << refused;
  EXPECT_FALSE(path_exists(folder_.file("run-other")));

  RunConfig moved = tuned("abdc", "moved");  // only the record of the data's tokenizer is left
  remove_path(folder_.file("moved_tokenizer"));
  EXPECT_TRUE(holds(error_of([&] { train(moved); }), "moved_tokenizer, needed to compare ids, is missing"));
  RunConfig validated = tuned("abcd", "validated");  // data without a record, a validation set with one
  validated.validation_data = folder_.file("other");
  validated.train_data = folder_.file("corpus");
  EXPECT_TRUE(holds(error_of([&] { train(validated); }), "other was made with the tokenizer"));
  remove_path(model_ + "/manifest.json");
  remove_path(model_ + "/characters.json");
  EXPECT_EQ(error_of([&] { train(tuned("abdc", "unknown")); }), "(no error)") << "a folder without a tokenizer";
}

TEST_F(ModelFolder, LongerSequencesThanItKnowsAreRefusedOrStored) {
  RunConfig learned = tuned("abcd", "learned");
  learned.sequence_length = 64;
  std::string refused = error_of([&] { train(learned); });
  EXPECT_TRUE(holds(refused, model_ + " has embeddings of 32 positions, data.sequence_length 64")) << refused;
  learned.sequence_length = 16, learned.max_positions = 48;
  refused = error_of([&] { train(learned); });
  EXPECT_TRUE(holds(refused, "model.max_positions 48")) << refused;
  RunConfig config = tiny_config(folder_, "fp32", "llama");
  config.steps = 1, config.out = folder_.file("rotary");
  config.model_from = train(config).checkpoint, config.out = folder_.file("longer");
  config.hidden = config.layers = config.heads = config.kv_heads = config.intermediate = config.max_positions = 0;
  config.sequence_length = 64;
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  const std::string longer = train(config).checkpoint;
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(holds(said, "was made for sequences of at most 32 tokens: this run trains on 64 and writes 64")) << said;
  EXPECT_TRUE(holds(read_file(longer + "/config.json"), "\"max_position_embeddings\": 64"));
  config.steps = 2;
  EXPECT_EQ(train(config).run.step, 2) << "a run that goes on has the sizes it began with";
}

TEST_F(ModelFolder, DamageIsFoundBeforeARunBeginsWithIt) {
  remove_path(model_ + "/optimizer.safetensors");  // not read
  EXPECT_EQ(error_of([&] { train(tuned("abcd", "whole")); }), "(no error)");
  const std::string file = model_ + "/model.safetensors";
  std::string content = read_file(file);
  content.back() ^= 1;
  write_file(file, content);
  RunConfig config = tuned("abcd", "damaged");
  const std::string refused = error_of([&] { train(config); });
  EXPECT_TRUE(holds(refused, "model.safetensors: content does not match its checksum")) << refused;
  EXPECT_TRUE(holds(refused, "remove " + model_ + "/manifest.json")) << refused;
  EXPECT_FALSE(path_exists(config.out));
  remove_path(model_ + "/manifest.json");
  EXPECT_EQ(error_of([&] { train(config); }), "(no error)");
  config.steps = 2;
  write_file(model_ + "/manifest.json", "{");
  EXPECT_EQ(error_of([&] { train(config); }), "(no error)") << "a run that goes on does not read it";
}

}  // namespace
}  // namespace octet
