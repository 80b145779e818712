// Batches of each objective, and that small graphs learn from them on the interpreter.
#include "train/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "io/dataset.h"
#include "ir/builder.h"
#include "passes/passes.h"
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

// Steps on micro-batches 0, 1, ... of graph `train`: the mean loss of each.
std::vector<double> losses_of(const Graph& train, const Objective& objective, int steps) {
  const StepperOptions options{.compile = {.target = interpreter_target(), .recipe = parse_recipe("fp32")},
                               .interpret = true};
  Program program = training_program(train, train, {.name = "sgd", .momentum = 0.0, .weight_decay = 0.0, .clip = 0.0});
  Stepper stepper(compile(std::move(program), options.compile), options);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const Batch batch = objective.get(step);
    losses.push_back(stepper.step({.micro_batches = {&batch, 1}, .lr = 2.0, .step = step + 1}).loss);
  }
  return losses;
}

// Logits of a row are those that a table has for it; zeros in the beginning.
Graph table_graph(const char* labels, const char* rows, int64_t classes) {
  Graph graph("loss");
  Builder b(graph);
  const int64_t tokens = kSequences * kLength;
  Value logits = b.embedding(b.token_ids(tokens), b.param("table", {kVocab, classes}, {.init = Init::kZeros}));
  const int64_t picked = rows == nullptr ? tokens : kSequences;
  if (rows != nullptr) logits = b.select_rows(logits, b.input(rows, {DType::kI32, {picked}}));
  const Value losses = b.cross_entropy(logits, b.input(labels, {DType::kI32, {picked}})).per_token;
  b.output("loss", b.reduce(losses, "sum", "all"));
  return graph;
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

// Tensors that table_graph does not read.
class WithoutPlaces : public Objective {
 public:
  explicit WithoutPlaces(const Objective& objective) : objective_(objective) {}
  Batch get(int64_t micro_batch) const override {
    Batch batch = objective_.get(micro_batch);
    batch.tensors.at("segments").optional = true;
    return batch;
  }

 private:
  const Objective& objective_;
};

TEST(NextToken, TargetsAreThoseTheSetCounts) {
  TempFolder folder;
  const NextToken objective(make_set(folder, /*masked=*/true), {.length = kLength, .order = SampleOrder::kSequential},
                            kSequences, false);
  const Batch batch = objective.get(3);
  const auto ids = batch.ints("ids"), targets = batch.ints("targets");
  for (size_t t = 0; t < ids.size(); ++t) EXPECT_EQ(targets[t], ids[t] % 2 == 1 ? (ids[t] + 1) % 10 : -1) << t;
  EXPECT_EQ(batch.target_count, kSequences * kLength / 2);
  // Only targets that count are in the loss: half as many of the same loss are the same mean.
  const std::vector<double> losses = losses_of(table_graph("targets", nullptr, kVocab), WithoutPlaces(objective), 30);
  EXPECT_NEAR(losses[0], std::log(kVocab), 1e-6);
  EXPECT_LT(losses.back(), 0.3);
}

TEST(MaskedTokens, AreDrawnByTheSample) {
  TempFolder folder;
  const auto set = make_set(folder);
  const MaskingOptions masking{.mask_id = 11, .vocab_size = kVocab, .kept = {0}};
  const SampleOptions sampling{.length = kLength, .seed = 5};
  const MaskedTokens two(set, sampling, 2, masking), one(set, sampling, 1, masking);
  int64_t tokens = 0, chosen = 0, masked = 0, changed = 0;
  for (int64_t m = 0; m < 400; ++m) {
    const Batch batch = two.get(m);
    EXPECT_EQ(batch.tensors.at("ids").bytes, two.get(m).tensors.at("ids").bytes);
    int64_t counted = 0;
    for (int64_t s = 0; s < 2; ++s) {
      const Batch alone = one.get(2 * m + s);
      for (const char* name : {"ids", "targets"})
        EXPECT_TRUE(
            std::ranges::equal(batch.ints(name).subspan(static_cast<size_t>(s * kLength), kLength), alone.ints(name)))
            << name << " of sample " << 2 * m + s;
    }
    const auto ids = batch.ints("ids"), targets = batch.ints("targets");
    for (size_t t = 0; t < ids.size(); ++t) {
      EXPECT_NE(targets[t], 0) << "a token that is kept was chosen";
      tokens += targets[t] > 0 || ids[t] != 0;
      if (targets[t] < 0) continue;
      ++counted;
      masked += ids[t] == 11;
      changed += ids[t] != 11 && ids[t] != targets[t];
    }
    EXPECT_EQ(batch.target_count, counted);
    chosen += counted;
  }
  // Some 860 of 5,760 are chosen: four standard deviations are 0.019 of the share, 0.055 and 0.04 of those below.
  EXPECT_NEAR(static_cast<double>(chosen) / static_cast<double>(tokens), 0.15, 0.019);
  EXPECT_NEAR(static_cast<double>(masked) / static_cast<double>(chosen), 0.8 + 0.1 / 12, 0.055);
  EXPECT_NEAR(static_cast<double>(changed) / static_cast<double>(chosen), 0.1 * 10 / 12, 0.04);
  const MaskedTokens other(set, {.length = kLength, .seed = 6}, 2, masking);
  EXPECT_NE(other.get(0).tensors.at("targets").bytes, two.get(0).tensors.at("targets").bytes);
  EXPECT_NE(error_of([&] { MaskedTokens(set, sampling, 2, {.mask_id = 12, .vocab_size = 12}); }).find("mask_id 12"),
            std::string::npos);
}

// Reading [MASK] says nothing of the token; what is learnt is that 0 to 9 come, 10 and 11 do not, and that a token that
// was left as it is, is itself.
TEST(MaskedTokens, AreLearnt) {
  TempFolder folder;
  const MaskedTokens objective(make_set(folder), {.length = kLength, .seed = 5}, kSequences,
                               {.mask_id = 11, .vocab_size = kVocab, .chosen = 0.6});
  const std::vector<double> losses = losses_of(table_graph("targets", nullptr, kVocab), WithoutPlaces(objective), 60);
  EXPECT_NEAR(losses[0], std::log(kVocab), 1e-6);
  EXPECT_LT(losses.back(), losses[0]);
}

// One step by hand: at logits of zero a row's gradient is softmax - onehot over the batch's two sequences.
TEST(SequenceClassification, LearnsLabels) {
  const std::vector<LabelledSequence> data = {{{3, 1, 1}, 0}, {{4, 1}, 1}, {{5, 1, 1, 1, 1, 1, 1, 1}, 2}};
  const SequenceClassification objective(data, kLength, kSequences, 9);
  std::multiset<int32_t> seen;
  for (int64_t m = 0; m < 3; ++m) {  // two epochs
    const Batch batch = objective.get(m);
    const auto ids = batch.ints("ids"), first = batch.ints("first_rows"), last = batch.ints("last_rows");
    for (size_t s = 0; s < 2; ++s) {
      const int32_t label = batch.ints("labels")[s], length = static_cast<int32_t>(data[label].tokens.size());
      seen.insert(label);
      EXPECT_EQ(first[s], static_cast<int32_t>(s) * kLength);
      EXPECT_EQ(ids[first[s]], 3 + label);
      EXPECT_EQ(last[s], first[s] + length - 1);
      EXPECT_EQ(batch.ints("segments")[2 * s], first[s]);
      EXPECT_EQ(batch.ints("segments")[2 * s + 1], first[s] + length);
    }
    EXPECT_EQ(batch.ints("segments")[4], kSequences * kLength);
  }
  EXPECT_EQ(seen, (std::multiset<int32_t>{0, 0, 1, 1, 2, 2}));
  const std::vector<double> losses = losses_of(table_graph("labels", "first_rows", 3), objective, 12);
  EXPECT_NEAR(losses[0], std::log(3.0), 1e-6);
  // Of a sequence seen once: logits of lr / 2 (onehot - 1/3), the batch's mean being over two.
  const double seen_once = std::log(1 + 2 * std::exp(-1.0));
  const int32_t again = static_cast<int32_t>(std::ranges::count_if(objective.get(1).ints("labels"), [&](int32_t label) {
    return std::ranges::count(objective.get(0).ints("labels"), label) > 0;
  }));
  EXPECT_NEAR(losses[1], (again * seen_once + (2 - again) * std::log(3.0)) / 2, 1e-6);
  EXPECT_LT(losses.back(), 0.3);
  for (const LabelledSequence& bad : {LabelledSequence{}, LabelledSequence{std::vector<int32_t>(9), 0}})
    EXPECT_NE(error_of([&] { SequenceClassification({bad}, kLength, 1, 0); }).find("sequence 0 has"),
              std::string::npos);
}

}  // namespace
}  // namespace octet
