// Batches of language modelling by split and index, and that a small graph learns from them on the interpreter.
#include "train/language_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/testing/test_data.h"
#include "io/dataset.h"
#include "ir/builder.h"
#include "passes/passes.h"
#include "train/batches.h"
#include "train/stepper.h"

namespace octet {
namespace {

constexpr int64_t kVocab = 12, kLength = 8, kSequences = 2;

// A document of 200 tokens, each its place modulo 10; of odd ones none counts as a target where `masked`.
std::shared_ptr<const TokenDataset> make_set(const TempFolder& folder, bool masked = false) {
  DatasetWriter writer(folder.file("set"), TokenType::kU16);
  for (int i = 0; i < 200; ++i) {
    const uint8_t counts = i % 2 == 0;
    writer.append(std::vector<int32_t>{i % 10}, std::span(&counts, masked ? 1 : 0));
  }
  writer.commit();
  return TokenDataset::open(folder.file("set"), kVocab);
}

// Of two sequences of eight tokens, trained and validated on one set.
LanguageModel workload_on(const TokenDataset& set) {
  RunConfig config{.model_size = "gpt2-nano", .vocab_size = kVocab};
  config.train_data = config.validation_data = set.prefix();
  config.sequence_length = kLength, config.micro_batch = kSequences;
  return LanguageModel(config);
}

// Steps on training micro-batches 0, 1, ...: the mean loss of each. Logits of a token are those that a table has for
// it; zeros in the beginning.
std::vector<double> losses_of_a_table(const TrainingWorkload& workload, int steps) {
  Graph graph("loss");
  Builder b(graph);
  const int64_t tokens = kSequences * kLength;
  const Value logits = b.embedding(b.token_ids(tokens), b.param("table", {kVocab, kVocab}, {.init = Init::kZeros}));
  const Value losses = b.cross_entropy(logits, b.input("targets", {DType::kI32, {tokens}})).per_token;
  b.output("loss", b.reduce(losses, "sum", "all"));
  const StepperOptions options{.compile = {.target = interpreter_target(), .recipe = parse_recipe("fp32")},
                               .interpret = true};
  Program program = training_program(graph, graph, {.name = "sgd", .momentum = 0.0, .weight_decay = 0.0, .clip = 0.0});
  Stepper stepper(compile(std::move(program), options.compile), options);
  std::vector<double> means;
  for (int step = 0; step < steps; ++step) {
    Batch batch = workload.batch(DataSplit::kTraining, step);
    batch.tensors.at("segments").optional = true;  // a table reads no places
    means.push_back(stepper.step({.micro_batches = {&batch, 1}, .lr = 2.0, .step = step + 1}).loss);
  }
  return means;
}

// 10 documents of 32 tokens, of which the first is no target.
TEST(BatchPacker, SeparateDocumentsHaveTheSameTargetsWhereverSequencesEnd) {
  TempFolder folder;
  DatasetWriter writer(folder.file("set"), TokenType::kU16);
  for (int d = 0; d < 10; ++d) {
    writer.append(std::vector<int32_t>(32, d));
    writer.end_document();
  }
  writer.commit();
  const auto set = TokenDataset::open(folder.file("set"));
  for (const SampleOrder order : {SampleOrder::kSequential, SampleOrder::kShuffled}) {
    for (const int64_t length : {29, 32, 40, 64, 96}) {
      const TokenSampler sampler(set, {.length = length, .order = order});
      int64_t targets = 0;
      for (int64_t i = 0; i < sampler.samples_per_epoch(); ++i) {
        TokenSample sample;
        sampler.get(i, sample);
        BatchPacker packer(1, length, true);
        packer.add(sample);
        Batch batch = packer.finish();
        targets += batch.target_count;
        for (size_t t = 0; t < static_cast<size_t>(length); ++t) {
          const int32_t target = batch.ints("targets")[t];
          EXPECT_TRUE(target < 0 || target == batch.ints("ids")[t]) << "of another document, length " << length;
        }
      }
      if (order == SampleOrder::kSequential) {
        EXPECT_EQ(targets, 310) << length;
      }
    }
  }
}

TEST(LanguageModel, TargetsAreThoseTheSetCounts) {
  TempFolder folder;
  const LanguageModel workload = workload_on(*make_set(folder, /*masked=*/true));
  const Batch batch = workload.batch(DataSplit::kValidation, 3);
  const auto ids = batch.ints("ids"), targets = batch.ints("targets");
  for (size_t t = 0; t < ids.size(); ++t) EXPECT_EQ(targets[t], ids[t] % 2 == 1 ? (ids[t] + 1) % 10 : -1) << t;
  EXPECT_EQ(batch.target_count, kSequences * kLength / 2);
  // Only targets that count are in the loss: half as many of the same loss are the same mean.
  const std::vector<double> losses = losses_of_a_table(workload, 30);
  EXPECT_NEAR(losses[0], std::log(kVocab), 1e-6);
  EXPECT_LT(losses.back(), 0.3);
}

TEST(LanguageModel, BatchesAreThoseOfTheirSplitAndIndex) {
  TempFolder folder;
  const LanguageModel workload = workload_on(*make_set(folder));
  EXPECT_EQ(workload.batch(DataSplit::kTraining, 70).tensors.at("ids").bytes,
            workload.batch(DataSplit::kTraining, 70).tensors.at("ids").bytes);
  EXPECT_NE(workload.batch(DataSplit::kTraining, 70).tensors.at("ids").bytes,
            workload.batch(DataSplit::kTraining, 71).tensors.at("ids").bytes);
  // 200 tokens are 25 sequences, the last one short of a target: the last batch has one of two.
  ASSERT_EQ(workload.validation_batches(), 13);
  int64_t targets = 0;
  for (int64_t i = 0; i < 13; ++i) {
    const Batch batch = workload.batch(DataSplit::kValidation, i);
    EXPECT_EQ(batch.ints("ids")[0], i * kSequences * kLength % 10) << i;
    targets += batch.target_count;
  }
  EXPECT_EQ(targets, 199);
}

}  // namespace
}  // namespace octet
