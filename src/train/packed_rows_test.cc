// Training on rows of whole conversations: the loss and the gradients are those of the conversations apart, the order
// of rows is a function of seed and place, and sets of a row length that does not fit are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "io/dataset.h"
#include "train/batches.h"
#include "train/language_model.h"
#include "train/stepper.h"
#include "train/trainer.h"

namespace octet {
namespace {

constexpr int64_t kVocab = 48, kLength = 32;

// Conversations of these lengths, random ids, of which about half are targets, packed as rows of kLength.
std::shared_ptr<const TokenDataset> packed_set(const TempFolder& folder, const std::vector<int>& lengths) {
  DatasetWriter writer(folder.file("apart"), TokenType::kU16);
  Philox random(99);
  for (const int length : lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    std::vector<uint8_t> counts(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(random.below(kVocab));
      counts[i] = i > 0 && random.below(2) == 0;
    }
    counts.back() = 1;
    writer.append(ids, counts);
    writer.end_document();
  }
  writer.commit();
  pack_rows(folder.file("apart"), folder.file("packed"), kLength);
  return TokenDataset::open(folder.file("packed"), kVocab, -1, kLength);
}

TEST(PackedRows, TrainAsTheConversationsApart) {
  const TempFolder folder;
  const auto set = packed_set(folder, {13, 6, 9});
  ASSERT_EQ(set->rows(), 1);
  ASSERT_EQ(set->documents(), 3);
  const auto apart = TokenDataset::open(folder.file("apart"), kVocab);
  RunConfig config{.model_size = "gpt2-nano", .vocab_size = kVocab, .hidden = 32, .layers = 2, .heads = 2};
  config.sequence_length = kLength;
  const LanguageModel workload(resolve_model(config, kVocab), 1, kLength, /*separate_documents=*/true);
  // A step of plain gradient descent: what the weights change by is their gradient.
  const StepperOptions options{.optimizer = {.name = "sgd", .momentum = 0.0, .weight_decay = 0.0, .clip = 0.0},
                               .compile = {.target = interpreter_target(), .recipe = parse_recipe("fp32")},
                               .interpret = true};
  const auto step_of = [&](std::span<const Batch> batches) {
    Stepper stepper(workload, options);
    initialize_weights(stepper.executor(), 5);
    const StepResult result = stepper.step({.micro_batches = batches, .lr = 0.1, .step = 1});
    return std::pair(result, take_state(stepper.executor()));
  };
  BatchPacker packer(1, kLength, true);
  TokenSample row;
  TokenSampler(set, {.length = kLength}).get(0, row);
  EXPECT_EQ(row.segments, (std::vector<int32_t>{0, 13, 22}));
  packer.add(row);
  const Batch packed = packer.finish();
  std::vector<Batch> alone;
  for (int64_t document = 0; document < 3; ++document) {
    TokenSample one{.tokens = std::vector<int32_t>(static_cast<size_t>(apart->document_length(document))),
                    .segments = {0},
                    .counts = {}};
    one.counts.resize(one.tokens.size());
    apart->read(apart->document_begin(document), one.tokens);
    apart->read_counts(apart->document_begin(document), one.counts);
    packer.clear();
    packer.add(one);
    alone.push_back(packer.finish());
  }
  const auto [together, moved] = step_of({&packed, 1});
  const auto [one_by_one, wanted] = step_of(alone);
  EXPECT_EQ(together.targets, one_by_one.targets);
  EXPECT_GT(together.targets, 6);
  EXPECT_NEAR(together.loss, one_by_one.loss, 1e-6);
  EXPECT_NEAR(together.grad_norm, one_by_one.grad_norm, 1e-6);
  ASSERT_EQ(moved.tensors.size(), wanted.tensors.size());
  for (size_t i = 0; i < moved.tensors.size(); ++i) {
    const auto& [name, bytes] = moved.tensors[i];
    const auto* got = reinterpret_cast<const float*>(bytes.data());
    const auto* want = reinterpret_cast<const float*>(wanted.tensors[i].second.data());
    double most = 0;
    for (size_t k = 0; k < bytes.size() / 4; ++k) most = std::max<double>(most, std::abs(got[k] - want[k]));
    EXPECT_LE(most, 1e-6) << name;  // sums in another order
  }
}

// The loss is sum w l / sum w, and its gradient, however a step is cut: weights of 1 are none; a weight of 2 is a
// sequence twice.
TEST(WeighedTargets, AreCountedByTheirWeights) {
  RunConfig config{.model_size = "gpt2-nano", .vocab_size = kVocab, .hidden = 32, .layers = 2, .heads = 2};
  const ModelConfig model = resolve_model(config, kVocab);
  constexpr int64_t kShort = 8;
  const StepperOptions options{.optimizer = {.name = "sgd", .momentum = 0.0, .weight_decay = 0.0, .clip = 0.0},
                               .compile = {.target = cpu_target(), .recipe = parse_recipe("fp32")}};
  Philox random(7);
  std::vector<std::vector<int32_t>> rows(3, std::vector<int32_t>(kShort + 1));
  for (auto& row : rows)
    for (int32_t& id : row) id = static_cast<int32_t>(random.below(kVocab));
  // Sequences of weights, some in each micro-batch.
  using Sequence = std::pair<size_t, float>;
  const auto step_of = [&](const std::vector<std::vector<Sequence>>& micro_batches, bool weighed) {
    LanguageModel workload(model, 2, kShort, false);
    workload.weigh_targets(weighed);
    Stepper stepper(workload, options);
    initialize_weights(stepper.executor(), 5);
    std::vector<Batch> batches;
    for (const auto& sequences : micro_batches) {
      BatchPacker packer(2, kShort, false, weighed);
      for (const auto& [row, weight] : sequences) {
        std::vector<float> weights(weighed ? kShort + 1 : 0, weight);
        packer.add(rows[row], {0}, {}, weights);
      }
      batches.push_back(packer.finish());
    }
    return stepper.step({.micro_batches = batches, .lr = 0.1, .step = 1});
  };
  const auto expect_same = [](const StepResult& a, const StepResult& b, double most) {
    EXPECT_NEAR(a.loss, b.loss, most);
    EXPECT_NEAR(a.grad_norm, b.grad_norm, most);
    EXPECT_DOUBLE_EQ(a.weight, b.weight);
  };
  const StepResult plain = step_of({{{0, 1}, {1, 1}}}, false);
  EXPECT_EQ(plain.weight, static_cast<double>(plain.targets));
  expect_same(step_of({{{0, 1}, {1, 1}}}, true), plain, 1e-6);
  const StepResult twice = step_of({{{0, 1}, {0, 1}}, {{1, 1}, {2, 1}}}, false);
  expect_same(step_of({{{0, 2}, {1, 1}}, {{2, 1}}}, true), twice, 1e-6);
  expect_same(step_of({{{2, 1}}, {{0, 2}, {1, 1}}}, true), twice, 1e-6);
  const StepResult without = step_of({{{0, 1}, {1, 1}}}, false);
  const StepResult zero = step_of({{{0, 1}, {1, 1}}, {{2, 0}}}, true);
  EXPECT_EQ(zero.targets, without.targets);
  expect_same(zero, without, 1e-6);
  EXPECT_GT(std::abs(step_of({{{0, 3}, {1, 1}}}, true).loss - plain.loss), 1e-3);
}

// Of runs: ranks, resumes and evaluations count as one rank does.
TEST(WeighedTargets, RanksAndResumesLearnWhatOneRunDoes) {
  const TempFolder folder;
  DatasetWriter writer(folder.file("set"), TokenType::kU16);
  Philox random(5);
  for (int32_t i = 0, token = 1; i < 3000; ++i) {
    const float weight = 0.25f * static_cast<float>(1 + random.below(8));
    writer.append(std::vector<int32_t>{token}, {}, std::vector<float>{weight});
    token = static_cast<int32_t>(random.below(8) == 0 ? random.below(kVocab) : (token * 5 + 7) % kVocab);
  }
  writer.commit();
  RunConfig config{.model_size = "gpt2-nano", .vocab_size = kVocab, .hidden = 32, .layers = 2, .heads = 2};
  config.train_data = config.validation_data = folder.file("set");
  config.sequence_length = 16, config.micro_batch = 2, config.global_batch = 8, config.steps = 6, config.threads = 1;
  config.recipe = "fp32", config.checkpoint_interval = 3, config.eval_interval = 3, config.checkpoint_best = false;
  std::vector<double> losses;
  const auto run = [&](const std::string& out) {
    config.out = folder.file(out);
    losses.clear();
    return train(config, {.on_step = [&](const RunState&, const StepResult& step) { losses.push_back(step.loss); }});
  };
  const TrainResult straight = run("straight");
  const std::vector<double> one = losses;
  config.out = folder.file("resumed");
  struct Stop {};
  EXPECT_THROW(train(config, {.on_step =
                                  [](const RunState& state, const StepResult&) {
                                    if (state.step == 5) throw Stop{};
                                  }}),
               Stop);
  const TrainResult resumed = run("resumed");
  EXPECT_EQ(losses, (std::vector<double>(one.begin() + 3, one.end())));
  EXPECT_EQ(read_file(resumed.checkpoint + "/model.safetensors"),
            read_file(straight.checkpoint + "/model.safetensors"));
  config.data_ranks = 2;
  const TrainResult two = run("two");
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(losses[i], one[i], 1e-5);
  EXPECT_NEAR(two.last_metric, straight.last_metric, 1e-5);
  std::filesystem::remove(folder.file("set") + ".weights");
  config.data_ranks = 1;
  run("plain");
  EXPECT_NE(losses[0], one[0]);
}

TEST(PackedRows, OrderIsAFunctionOfSeedAndPlace) {
  const TempFolder folder;
  const auto set = packed_set(folder, std::vector<int>(40, 20));
  ASSERT_EQ(set->rows(), 40);
  for (const SampleOrder order : {SampleOrder::kShuffled, SampleOrder::kSequential, SampleOrder::kRandomOffset}) {
    const SampleOptions options{.length = kLength, .order = order, .seed = 3};
    const TokenSampler sampler(set, options), again(set, options);
    ASSERT_EQ(sampler.samples_per_epoch(), 40);
    std::set<std::vector<int32_t>> rows;
    TokenSample one, two;
    for (int64_t i = 0; i < 40; ++i) {
      sampler.get(i, one), again.get(i, two);
      EXPECT_EQ(one.tokens, two.tokens);
      rows.insert(one.tokens);
    }
    if (order != SampleOrder::kRandomOffset) {
      EXPECT_EQ(rows.size(), 40u);  // each once an epoch
    }
    again.get(45, two), sampler.get(5, one);
    EXPECT_EQ(order == SampleOrder::kSequential, one.tokens == two.tokens);
  }
}

TEST(PackedRows, LayoutsThatDoNotFitAreRefused) {
  const TempFolder folder;
  const auto set = packed_set(folder, {13, 6, 9});
  EXPECT_NE(error_of([&] { TokenSampler(set, {.length = kLength - 1}); }).find("data.sequence_length=32"),
            std::string::npos);
  EXPECT_NE(error_of([&] { pack_rows(folder.file("apart"), folder.file("more"), 12); }).find("13 tokens"),
            std::string::npos);
}

// The fullest rows that best fit finds; every document once.
TEST(PackedRows, BestFit) {
  const TempFolder folder;
  const auto set = packed_set(folder, {20, 5, 16, 12, 16, 3, 9, 15});
  EXPECT_EQ(set->rows(), 3);  // 20 + 12; 16 + 16; 15 + 9 + 5 + 3
  std::multiset<int64_t> lengths;
  for (int64_t document = 0; document < set->documents(); ++document) lengths.insert(set->document_length(document));
  EXPECT_EQ(lengths, (std::multiset<int64_t>{3, 5, 9, 12, 15, 16, 16, 20}));
}

// A run on 40 rows of a packed set, four a step.
RunConfig run_on_rows(const TempFolder& folder) {
  const auto set = packed_set(folder, std::vector<int>(40, 20));
  write_file(folder.file("packed.json"), R"({"tokenizer": {"path": "packed_tokenizer", "fingerprint": "f",
      "vocab_size": 48, "eos_id": 1, "bos_id": 0}, "begin_of_document": false, "row_length": 32, "answer_end": 7,
      "splits": [{"name": "all", "prefix": "packed", "documents": 40, "tokens": 800, "bytes": 800, "rows": 40}]})");
  RunConfig config{.model_size = "gpt2-nano", .hidden = 32, .layers = 1, .heads = 2};
  config.train_data = config.validation_data = folder.file("packed");
  config.sequence_length = kLength, config.separate_documents = true;
  config.micro_batch = 2, config.global_batch = 4;
  config.device = "cpu", config.recipe = "fp32", config.out = folder.file("run");
  config.eval_interval = 0, config.checkpoint_interval = 0;
  return config;
}

TEST(PackedRows, EpochsArePassesOverTheRows) {
  const TempFolder folder;
  RunConfig config = run_on_rows(folder);
  config.epochs = 1.25;
  TrainResult result = train(config);
  EXPECT_EQ(result.run.step, 13);  // 50 rows
  EXPECT_TRUE(std::isfinite(result.last_loss));
  EXPECT_EQ(read_special_tokens(result.checkpoint).eos, (std::vector<int64_t>{1, 7}));  // 7 ends answers
  // The run goes on where the epochs do.
  config.epochs = 2;
  result = train(config);
  EXPECT_EQ(result.run.step, 20);
  config.sampling = "random";
  EXPECT_NE(error_of([&] { train(config); }).find("data.sampling=shuffle"), std::string::npos);
  config.sampling = "shuffle", config.separate_documents = false;
  EXPECT_NE(error_of([&] { train(config); }).find("data.separate_documents=true"), std::string::npos);
}

TEST(PackedRows, PatienceEndsARunThatGetsNoBetter) {
  const TempFolder folder;
  RunConfig config = run_on_rows(folder);
  config.steps = 40, config.eval_interval = 2, config.eval_patience = 3;
  config.optimizer.lr = config.optimizer.min_lr = 0;
  config.checkpoint_best = false;
  TrainResult result = train(config);
  EXPECT_EQ(result.run.step, 8);  // the best is that of step 2
  EXPECT_TRUE(result.out_of_patience);
  EXPECT_FALSE(result.interrupted);
  EXPECT_NE(result.checkpoint.find('8'), std::string::npos);
  // A resumed run knows it, and more patience continues it.
  EXPECT_EQ(train(config).run.step, 8);
  config.eval_patience = 5;
  EXPECT_EQ(train(config).run.step, 12);
  config.eval_patience = 0;
  EXPECT_EQ(train(config).run.step, 40);
  config.eval_patience = 2, config.validation_data = "", config.steps = 50;
  EXPECT_NE(error_of([&] { train(config); }).find("data.validation"), std::string::npos);
}

}  // namespace
}  // namespace octet
