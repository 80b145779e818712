#include "train/bert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "exec/logical_states.h"
#include "train/plan_report.h"
#include "train/stepper.h"
#include "train/trainer.h"
#include "weights/weights.h"

namespace octet {
namespace {

constexpr int64_t kVocab = 61, kLength = 24;

// [CLS] a [SEP] b [SEP]: a counts up from a number that b goes on from where it is next; one token in six is masked.
BertSequence make_sequence(uint64_t index, int64_t shortest = 8, int64_t longest = 20) {
  Philox random(11, index);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random.below(static_cast<uint64_t>(n))); };
  const int64_t length = shortest + below(longest - shortest + 1), middle = length / 2;
  BertSequence s{.is_next = below(2) == 0};
  const auto start = static_cast<int32_t>(below(50)), other = static_cast<int32_t>(below(50));
  for (int64_t i = 0; i < length; ++i) {
    const bool second = i > middle;
    const auto place = static_cast<int32_t>(i);
    s.ids.push_back(i == 0                           ? 1
                    : i == middle || i + 1 == length ? 2
                                                     : 4 + (place + (second && !s.is_next ? other : start)) % 50);
    s.types.push_back(second);
    if (s.ids.back() < 4 || below(6) > 0) continue;
    s.positions.push_back(place);
    s.labels.push_back(std::exchange(s.ids.back(), 3));
  }
  return s;
}

std::vector<BertSequence> make_sequences(int64_t count, uint64_t first = 0) {
  std::vector<BertSequence> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(make_sequence(first + static_cast<uint64_t>(i)));
  return all;
}

RunConfig small_config() {
  RunConfig config = default_settings("bert");
  config.hidden = 32, config.layers = 2, config.heads = 2, config.intermediate = 64, config.vocab_size = kVocab;
  config.sequence_length = config.max_positions = kLength;
  config.micro_batch = 1, config.dropout = 0, config.recipe = "fp32", config.device = "cpu";
  config.optimizer.warmup_steps = 0;
  return config;
}

struct Gradients {
  StepResult result;
  std::map<std::string, std::vector<float>> values;
};

Gradients gradients_of(const BertPretraining& bert, const RunConfig& config, std::span<const Batch> batches) {
  Stepper stepper(bert, stepper_options(config, cpu_target()));
  initialize_weights(stepper.executor(), 7);
  Gradients all{.result = stepper.step({.micro_batches = batches, .lr = 0.01, .seed = 3})};
  for (const LogicalState& state : logical_states(stepper.executor().program())) {
    if (state.role != StateRole::kGradient) continue;
    std::vector<float>& values = all.values[state.param];
    values.resize(static_cast<size_t>(state.type.shape.elements()));
    read_logical(stepper.executor(), state, std::as_writable_bytes(std::span(values)));
  }
  return all;
}

void expect_same(const Gradients& one, const Gradients& other) {
  EXPECT_NEAR(one.result.loss, other.result.loss, 2e-6);  // sums of float32 in other orders
  ASSERT_EQ(one.values.size(), other.values.size());
  double largest = 0;
  for (const auto& [name, values] : one.values)
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], other.values.at(name)[i], 2e-6) << name << " " << i;
      largest = std::max(largest, std::abs(static_cast<double>(values[i])));
    }
  EXPECT_GT(largest, 1e-2);
}

TEST(Bert, ThreePackedInARowAreThreeApart) {
  RunConfig config = small_config();
  config.sequence_length = config.max_positions = 60;
  const BertPretraining bert(pretraining_model(config, 0), config);
  const std::vector<BertSequence> three = make_sequences(3);
  const Batch packed[] = {bert.pack(three)};
  std::vector<Batch> apart;
  for (const BertSequence& s : three) apart.push_back(bert.pack({&s, 1}));
  EXPECT_EQ(packed[0].target_count, 3);
  expect_same(gradients_of(bert, config, packed), gradients_of(bert, config, apart));
}

TEST(Bert, ACountOfNoneInOneLossLeavesTheOther) {
  const RunConfig config = small_config();
  const BertPretraining bert(pretraining_model(config, 0), config);
  BertSequence none = make_sequence(1), other = make_sequence(2);
  none.positions.clear(), none.labels.clear();
  ASSERT_FALSE(other.labels.empty());
  const Batch without[] = {bert.pack({&none, 1})};
  const Gradients next_alone = gradients_of(bert, config, without);
  EXPECT_NEAR(next_alone.result.loss, std::log(2), 0.1);  // fresh weights
  EXPECT_TRUE(next_alone.result.finite);
  for (const float g : next_alone.values.at("head.bias")) EXPECT_EQ(g, 0);
  // Beside a sequence with masked tokens it takes no part in their mean.
  const Batch both[] = {bert.pack({&none, 1}), bert.pack({&other, 1})}, alone[] = {bert.pack({&other, 1})};
  const Gradients two = gradients_of(bert, config, both), one = gradients_of(bert, config, alone);
  for (size_t i = 0; i < one.values.at("head.bias").size(); ++i)
    EXPECT_NEAR(one.values.at("head.bias")[i], two.values.at("head.bias")[i], 1e-6);
}

TEST(Bert, OverlappingSegmentsAreRefused) {
  const RunConfig config = small_config();
  const BertPretraining bert(pretraining_model(config, 0), config);
  for (const int32_t start : {2, 1000}) {  // before the one in front; behind the row
    Batch batch = bert.pack(make_sequences(1));
    batch.ints("segments")[1] = 5, batch.ints("segments")[2] = start;
    const std::string error = error_of([&] { gradients_of(bert, config, {&batch, 1}); });
    EXPECT_NE(error.find("starts must not decrease and stay within the tokens"), std::string::npos) << error;
  }
}

TEST(Bert, EveryRecipeLearns) {
  for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
    SCOPED_TRACE(recipe);
    RunConfig config = small_config();
    config.recipe = recipe, config.micro_batch = 4;
    const BertPretraining bert(pretraining_model(config, 0), config);
    Stepper stepper(bert, stepper_options(config, cpu_target()));
    initialize_weights(stepper.executor(), 7);
    const Batch batch[] = {bert.pack(make_sequences(4))};
    double first = 0, last = 0;
    for (int64_t step = 1; step <= 15; ++step) {
      const StepResult result = stepper.step({.micro_batches = batch, .lr = 0.04, .step = step});
      ASSERT_TRUE(result.finite);
      (step == 1 ? first : last) = result.loss;
    }
    EXPECT_LT(last, 0.85 * first);
  }
}

TEST(Bert, CompilesForGpus) {
  for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
    RunConfig config = default_settings("bert");
    config.layers = 2, config.micro_batch = 4, config.recipe = recipe;
    const BertPretraining bert(pretraining_model(config, 0), config);
    const PlanReport report = plan_training(bert, config, h200_target());
    EXPECT_FALSE(report.causal);
    const std::string text = to_text(report, h200_target());
    for (const char* part :
         {"one micro-batch of 12 sequences", "recomputed a sequence (a token sees its whole sequence)"})
      EXPECT_NE(text.find(part), std::string::npos) << recipe << "\n" << text;
  }
}

class BertRun : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kWarning);
    write_bert_set(folder_.file("train"), {.vocab_size = kVocab}, make_sequences(60));
    write_bert_set(folder_.file("val"), {.vocab_size = kVocab}, make_sequences(25, 1000));
    config_ = small_config();
    config_.train_data = folder_.file("train"), config_.validation_data = folder_.file("val");
    config_.micro_batch = 2, config_.global_batch = 8, config_.steps = 12, config_.dropout = 0.1;
    config_.dropout_bits = 8;
    config_.optimizer.lr = 0.01, config_.eval_interval = 4, config_.checkpoint_interval = 5, config_.log_interval = 1;
    config_.out = folder_.file("run");
  }
  std::string error() const {
    return error_of([&] { train(config_); });
  }
  static std::string weights_of(const TrainResult& result) {
    return read_file(result.checkpoint + "/model.safetensors");
  }

  TempFolder folder_;
  RunConfig config_;
};

TEST_F(BertRun, LearnsInSequencesAndWritesAFolder) {
  config_.steps = 60, config_.eval_target = 0.999;
  config_.optimizer.name = "adamw", config_.optimizer.lr = 3e-3, config_.dropout = 0;
  std::vector<double> losses;
  const TrainResult result =
      train(config_, {.on_step = [&](const RunState&, const StepResult& step) { losses.push_back(step.loss); }});
  EXPECT_LT(losses.back(), 0.85 * losses.front());
  EXPECT_EQ(result.metric.name, "masked_accuracy");
  EXPECT_FALSE(result.reached_target);
  const std::string log = read_file(config_.out + "/log.jsonl");
  for (const char* part : {"\"sequences\"", "\"sequences_per_second\"", "\"masked_accuracy\"", "\"next_accuracy\"",
                           "\"masked_loss\"", "\"next_loss\""})
    EXPECT_NE(log.find(part), std::string::npos) << part;
  const auto config = parse_json(read_file(result.checkpoint + "/config.json"), "config.json");
  EXPECT_EQ(config.at("architectures").at(0), "BertForPreTraining");
  EXPECT_EQ(open_weights(result.checkpoint)->config().labels, 2);
  // The loss of a step and of an evaluation is the sum of both means.
  for (const char* kind : {"step", "eval"}) {
    const size_t at = log.rfind(fmt::format("\"kind\":\"{}\"", kind)), begin = log.rfind('\n', at) + 1;
    const auto entry = parse_json(log.substr(begin, log.find('\n', at) - begin), "log");
    const double masked = entry.at("masked_loss"), next = entry.at("next_loss");
    EXPECT_NEAR(entry.at("loss").get<double>(), masked + next, 1e-6) << kind;  // steps add in float32
    EXPECT_GT(masked, next);
    EXPECT_GT(next, 0.01);
    if (std::string(kind) == "eval") {
      EXPECT_EQ(entry.at("sequences"), 25);
    }
  }
}

// As the reference's: normal(0, 0.02) cut at two standard deviations, in every layer. No projection into the residual
// stream is scaled down, since a norm follows it.
TEST(Bert, WeightsBeginAlike) {
  const RunConfig config = small_config();
  const BertPretraining bert(pretraining_model(config, 0), config);
  Stepper stepper(bert, stepper_options(config, cpu_target()));
  initialize_weights(stepper.executor(), 7);
  for (const char* name : {"embed.weight", "layers.0.attn.q.weight", "layers.1.attn.o.weight",
                           "layers.0.mlp.down.weight", "transform.weight", "pooler.weight"}) {
    const StateEntry* entry = stepper.executor().program().find_state(name);
    ASSERT_NE(entry, nullptr) << name;
    std::vector<float> values(static_cast<size_t>(entry->type.shape.elements()));
    stepper.executor().read_state(name, std::as_writable_bytes(std::span(values)));
    double squares = 0, largest = 0;
    for (const float value : values) {
      squares += static_cast<double>(value) * static_cast<double>(value);
      largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
    EXPECT_LE(largest, 0.04 + 1e-9) << name;
    EXPECT_GT(largest, 0.036) << name;
    // The variance of a standard normal cut at two is 0.7737.
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), 0.02 * std::sqrt(0.7737), 1e-3) << name;
  }
}

TEST_F(BertRun, EndsAtItsTarget) {
  config_.eval_target = 0.001, config_.steps = 40;
  const TrainResult result = train(config_);
  EXPECT_TRUE(result.reached_target);
  EXPECT_LT(result.run.step, 40);
  EXPECT_TRUE(path_exists(checkpoint_folder(config_.out, result.run.step)));
  EXPECT_NE(read_file(config_.out + "/log.jsonl").find("eval.target"), std::string::npos);
  EXPECT_EQ(train(config_).run.step, result.run.step);  // resumed, it has nothing to do
}

TEST_F(BertRun, DataRanksLearnWhatOneRankDoes) {
  config_.dropout = 0, config_.steps = 5;
  std::vector<double> losses[5], masked[5];
  for (const int64_t ranks : {1, 2, 4}) {
    config_.data_ranks = ranks, config_.out = folder_.file(fmt::format("ranks_{}", ranks));
    const TrainResult result = train(config_, {.on_step = [&](const RunState&, const StepResult& step) {
                                       losses[ranks].push_back(step.loss);
                                       masked[ranks].push_back(step.sums.at("masked_loss"));
                                     }});
    losses[ranks].push_back(result.last_metric);
  }
  for (const int64_t ranks : {2, 4})
    for (size_t i = 0; i < losses[1].size(); ++i) {
      EXPECT_NEAR(losses[ranks][i], losses[1][i], 1e-5) << ranks << " " << i;
      EXPECT_NEAR(masked[ranks].at(std::min<size_t>(i, 4)), masked[1].at(std::min<size_t>(i, 4)), 1e-5);
    }
}

TEST_F(BertRun, ResumesWithTheSameBits) {
  const TrainResult straight = train(config_);
  config_.out = folder_.file("interrupted");
  struct Stop {};
  EXPECT_THROW(train(config_, {.on_step =
                                   [](const RunState& run, const StepResult&) {
                                     if (run.step == 8) throw Stop{};
                                   }}),
               Stop);
  EXPECT_EQ(weights_of(train(config_)), weights_of(straight));
}

TEST_F(BertRun, RefusesWhatItCannotTrainOn) {
  const auto write = [&](BertSequence s) { write_bert_set(folder_.file("train"), {.vocab_size = kVocab}, {&s, 1}); };
  BertSequence s = make_sequence(1);
  s.ids[3] = kVocab;
  EXPECT_NE(error_of([&] { write(s); }).find("sequence 0: id 3 is 61 (want 0 to 60)"), std::string::npos);
  s = {.ids = {1}, .types = {0}, .positions = {}, .labels = {}};
  EXPECT_NE(error_of([&] { write(s); }).find("1 tokens (want 2 or more"), std::string::npos);
  s = make_sequence(1);
  s.positions = {4, 4}, s.labels = {5, 6};
  EXPECT_NE(error_of([&] { write(s); }).find("ascending"), std::string::npos);
  s.positions = {4, 40};
  EXPECT_NE(error_of([&] { write(s); }).find("masked position 1 is 40"), std::string::npos);
  write(make_sequence(1, 30, 30));
  EXPECT_NE(error().find("sequence 0 has 30 tokens, data.sequence_length is 24"), std::string::npos) << error();
  write(make_sequence(1));
  config_.vocab_size = 40;
  EXPECT_NE(error().find("vocabulary"), std::string::npos) << error();
  config_.vocab_size = kVocab, config_.predictions = 1;
  EXPECT_NE(error().find("raise data.predictions"), std::string::npos) << error();
  config_.predictions = 0, config_.model_size = "gpt2-124m";
  EXPECT_NE(error().find("set model.size to bert-base or bert-large"), std::string::npos) << error();
}

TEST(BertSet, KeepsSequencesAndPacksThem) {
  TempFolder folder;
  const std::vector<BertSequence> all = make_sequences(200);
  write_bert_set(folder.file("set"), {.vocab_size = kVocab}, all);
  const BertSet set(folder.file("set"));
  ASSERT_EQ(set.sequences(), 200);
  std::vector<BertSet::Sizes> sizes;
  BertSequence read;
  for (int64_t i = 0; i < 200; ++i) {
    const BertSequence& s = all[static_cast<size_t>(i)];
    set.get(i, read);
    EXPECT_EQ(read.ids, s.ids);
    EXPECT_EQ(read.types, s.types);
    EXPECT_EQ(read.positions, s.positions);
    EXPECT_EQ(read.labels, s.labels);
    EXPECT_EQ(read.is_next, s.is_next);
    sizes.push_back(set.sizes(i));
  }
  const BertRows rows = pack_rows(sizes, {.tokens = 40, .sequences = 3, .predictions = 12}, "set");
  std::vector<int64_t> seen = rows.order;
  std::ranges::sort(seen);
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(seen.at(static_cast<size_t>(i)), i);
  int64_t filled = 0;
  for (int64_t r = 0; r < rows.size(); ++r) {
    int64_t tokens = 0, predictions = 0;
    for (int64_t i = rows.begins[static_cast<size_t>(r)]; i < rows.begins[static_cast<size_t>(r) + 1]; ++i) {
      const auto& size = sizes[static_cast<size_t>(rows.order[static_cast<size_t>(i)])];
      tokens += size.tokens, predictions += size.predictions;
    }
    EXPECT_LE(rows.begins[static_cast<size_t>(r) + 1] - rows.begins[static_cast<size_t>(r)], 3);
    EXPECT_LE(tokens, 40);
    EXPECT_LE(predictions, 12);
    filled += tokens;
  }
  EXPECT_GT(static_cast<double>(filled), 0.9 * 40 * static_cast<double>(rows.size()));
}

}  // namespace
}  // namespace octet
