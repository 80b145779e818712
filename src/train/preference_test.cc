// Preference training on pairs made here: the first step by hand, the same loss however a step is cut, every recipe,
// resumes, and what is refused.
#include "train/preference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "train/batches.h"
#include "train/plan_report.h"
#include "train/sequence_scores.h"
#include "train/trainer.h"

namespace octet {
namespace {

constexpr int64_t kVocab = 64, kLength = 24, kPairs = 24;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class Preference : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kError);
    make_text();
    make_pairs("pairs", kPairs, 1);
    config_.threads = 1;
    config_.train_data = folder_.file("text");
    config_.architecture = "llama", config_.vocab_size = kVocab;
    config_.hidden = 32, config_.layers = 2, config_.heads = 4, config_.kv_heads = 2, config_.intermediate = 64;
    config_.sequence_length = kLength, config_.micro_batch = 4;
    config_.recipe = "fp32", config_.recompute = "none", config_.steps = 5;
    config_.optimizer.lr = 1e-2, config_.optimizer.warmup_steps = 0, config_.optimizer.weight_decay = 0;
    config_.eval_interval = 1000, config_.checkpoint_interval = 5, config_.checkpoint_best = false;
    config_.out = folder_.file("base");
    base_ = train(config_).checkpoint;
    config_.objective = "dpo", config_.model_from = base_, config_.steps = 4;
    config_.train_data = config_.validation_data = folder_.file("pairs");
    config_.micro_batch = 8, config_.optimizer.lr = 4e-3;
    config_.adapter.method = "lora", config_.adapter.rank = 4, config_.adapter.alpha = 8;
  }
  static int32_t rule(int32_t token, int32_t factor) { return (token * factor + 7) % kVocab; }
  void make_text() {
    DatasetWriter writer(folder_.file("text"), TokenType::kU16);
    for (int32_t i = 0, token = 1; i < 3000; ++i, token = rule(token, 3)) writer.append(std::vector<int32_t>{token});
    writer.commit();
  }
  // Chosen answers go on by another rule than the base has learnt, rejected ones by its own.
  void make_pairs(const std::string& name, int64_t count, uint64_t seed) {
    DatasetWriter writer(folder_.file(name), TokenType::kU16);
    Philox random(seed);
    for (int64_t i = 0; i < count; ++i) {
      std::vector<int32_t> prompt(2 + random.below(3));
      for (int32_t& id : prompt) id = static_cast<int32_t>(random.below(kVocab));
      for (const int32_t factor : {5, 3}) {
        std::vector<int32_t> ids = prompt;
        const size_t answer = 2 + random.below(6);
        for (size_t t = 0; t < answer; ++t) ids.push_back(rule(ids.back(), factor));
        std::vector<uint8_t> counts(ids.size(), 1);
        std::fill_n(counts.begin(), prompt.size(), 0);
        writer.append(ids, counts);
        writer.end_document();
      }
      writer.end_row();
    }
    writer.commit();
    const nlohmann::json record = {
        {"tokenizer", {{"path", "none"}, {"fingerprint", "f"}, {"vocab_size", kVocab}, {"eos_id", -1}}},
        {"row_length", kLength},
        {"pairs", true},
        {"splits",
         {{{"name", "all"},
           {"prefix", name},
           {"documents", 2 * count},
           {"tokens", writer.tokens()},
           {"bytes", 0},
           {"rows", count}}}}};
    write_file(folder_.file(name + ".json"), record.dump());
  }
  TrainResult run(const std::string& out) {
    config_.out = folder_.file(out);
    steps_.clear();
    return train(config_, {.on_step = [&](const RunState&, const StepResult& step) { steps_.push_back(step); }});
  }
  std::vector<nlohmann::json> log(const std::string& kind) const {
    std::vector<nlohmann::json> entries;
    const std::string text = read_file(config_.out + "/log.jsonl");
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
      end = text.find('\n', begin);
      nlohmann::json entry = parse_json(text.substr(begin, end - begin), "log");
      if (entry.at("kind") == kind) entries.push_back(std::move(entry));
    }
    return entries;
  }
  // Of every pair in the order of the set, by a language model of one sequence at a time.
  std::vector<std::array<double, 2>> logps_of(const std::string& folder, std::vector<std::array<int64_t, 2>>& tokens) {
    RunConfig plain = config_;
    plain.micro_batch = 1, plain.objective = "next_token", plain.adapter = {}, plain.dpo = {};
    const LanguageModel model(read_model_config(folder), plain);
    Stepper stepper(model, stepper_options(plain, cpu_target()));
    load_weights(*open_weights(folder), stepper.executor());
    const TokenSampler sampler(TokenDataset::open(folder_.file("pairs"), kVocab, -1, kLength),
                               {.length = kLength, .order = SampleOrder::kSequential});
    std::vector<std::array<double, 2>> logps;
    for (int64_t i = 0; i < kPairs; ++i) {
      TokenSample row;
      sampler.get(i, row);
      const PreferencePair pair = pair_of(row, "pairs");
      logps.emplace_back(), tokens.emplace_back();
      for (size_t side = 0; side < 2; ++side) {
        BatchPacker packer(1, kLength, false);
        packer.add(pair.tokens[side], {}, pair.counts[side]);
        const Batch& batch = packer.finish();
        logps.back()[side] = -stepper.evaluate(batch)[0];
        tokens.back()[side] = batch.target_count;
      }
    }
    return logps;
  }
  TempFolder folder_;
  RunConfig config_;
  std::string base_;
  std::vector<StepResult> steps_;
};

// The model is the base trained on; the reference is the base. One step of all pairs.
TEST_F(Preference, FirstStepByHand) {
  RunConfig further = config_;
  further.objective = "next_token", further.adapter = {}, further.train_data = folder_.file("text");
  further.validation_data = "", further.out = folder_.file("further"), further.steps = 3;
  const std::string policy = train(further).checkpoint;
  std::vector<std::array<int64_t, 2>> tokens, same;
  const auto ours = logps_of(policy, tokens), theirs = logps_of(base_, same);
  config_.adapter = {}, config_.model_from = policy, config_.dpo.reference = base_;
  config_.micro_batch = kPairs, config_.steps = 2;
  config_.optimizer = {.name = "sgd", .lr = 1e-4, .warmup_steps = 0, .momentum = 0, .weight_decay = 0, .clip = 0};
  for (const auto& [loss, smoothing] : {std::pair("sigmoid", 0.0), {"sigmoid", 0.2}, {"ipo", 0.0}}) {
    const double beta = 0.3;
    config_.dpo.loss = loss, config_.dpo.label_smoothing = smoothing, config_.dpo.beta = beta;
    double total = 0, chosen = 0, rejected = 0, right = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      const double c = ours[i][0] - theirs[i][0], r = ours[i][1] - theirs[i][1], z = beta * (c - r);
      const double of_means = c / static_cast<double>(tokens[i][0]) - r / static_cast<double>(tokens[i][1]);
      total += config_.dpo.loss == "ipo" ? std::pow(of_means - 1 / (2 * beta), 2)
                                         : -(1 - smoothing) * std::log(sigmoid(z)) - smoothing * std::log(sigmoid(-z));
      chosen += beta * c, rejected += beta * r, right += z > 0;
    }
    run(fmt::format("{}_{}", loss, smoothing));
    const StepResult& first = steps_[0];
    EXPECT_EQ(first.targets, kPairs);
    EXPECT_NEAR(first.loss, total / kPairs, 1e-4 * total / kPairs) << loss;
    EXPECT_NEAR(first.sums.at("rewards_chosen") / kPairs, chosen / kPairs, 1e-4) << loss;
    EXPECT_NEAR(first.sums.at("rewards_rejected") / kPairs, rejected / kPairs, 1e-4) << loss;
    EXPECT_NEAR(first.sums.at("margin") / kPairs, (chosen - rejected) / kPairs, 1e-4) << loss;
    EXPECT_EQ(first.sums.at("accuracy"), right) << loss;
    EXPECT_TRUE(right > 0 && right < kPairs) << "both kinds of pairs are there";
    // Along the gradient the loss falls by lr |g|^2, so far as it is straight.
    const double fall = config_.optimizer.lr * first.grad_norm * first.grad_norm;
    EXPECT_NEAR((steps_[0].loss - steps_[1].loss) / fall, 1, 0.05) << loss;
  }
}

TEST_F(Preference, LearnsAndLogsItsMetrics) {
  config_.steps = 30, config_.log_interval = 1, config_.eval_interval = 10, config_.dpo.beta = 0.5;
  run("learns");
  EXPECT_NEAR(steps_[0].loss, std::log(2), 1e-6) << "a fresh adapter is the reference";
  EXPECT_LT(steps_.back().loss, 0.5 * steps_[0].loss);
  const auto steps = log("step"), evaluations = log("eval");
  ASSERT_EQ(steps.size(), 30u);
  EXPECT_EQ(steps.back().at("pairs"), 30 * 8);
  for (const char* name : {"rewards_chosen", "rewards_rejected", "margin", "accuracy"}) {
    EXPECT_TRUE(steps.back().contains(name)) << name;
    EXPECT_TRUE(evaluations.back().contains(name)) << name;
  }
  EXPECT_NEAR(steps.back().at("margin").get<double>(),
              steps.back().at("rewards_chosen").get<double>() - steps.back().at("rewards_rejected").get<double>(),
              1e-5);
  EXPECT_GT(evaluations.back().at("accuracy"), 0.9);
  EXPECT_EQ(evaluations.back().at("pairs"), kPairs);
  EXPECT_NEAR(evaluations.front().at("loss").get<double>(), std::log(2), 1e-6);
  std::string events;
  for (const std::string& name : list_folder(config_.out + "/events"))
    events += read_file(config_.out + "/events/" + name);
  for (const char* tag : {"train/margin", "train/accuracy", "eval/rewards_chosen"})
    EXPECT_NE(events.find(tag), std::string::npos) << tag;
}

TEST_F(Preference, AStepIsTheSameHoweverItIsCut) {
  struct Cut {
    int64_t micro_batch, data = 1, tensor = 1, context = 1;
    const char* shard = "none";
  };
  const Cut cuts[] = {{24}, {3}, {4, 2}, {2, 2, 1, 1, "parameters"}, {6, 2, 2, 1, "optimizer"}, {12, 1, 1, 2}};
  for (const char* method : {"lora", "none"}) {
    config_.adapter = {};
    config_.adapter.method = method, config_.steps = 2;
    std::vector<StepResult> whole;
    for (const Cut& cut : cuts) {
      const auto at = &cut - cuts;
      config_.micro_batch = cut.micro_batch, config_.global_batch = 24;
      config_.data_ranks = cut.data, config_.tensor = cut.tensor, config_.context = cut.context;
      config_.shard = cut.shard;
      run(fmt::format("{}_{}", method, at));
      if (whole.empty()) whole = steps_;
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_NEAR(steps_[i].loss, whole[i].loss, 2e-5) << method << " " << at << " step " << i;
        EXPECT_NEAR(steps_[i].grad_norm, whole[i].grad_norm, 1e-4 * whole[i].grad_norm) << method << " " << at;
        for (const auto& [name, sum] : whole[i].sums) {
          if (i == 0 && name == "accuracy") continue;  // of margins of 0
          EXPECT_NEAR(steps_[i].sums.at(name), sum, 1e-3) << method << " " << at << " " << name;
        }
      }
    }
    config_.data_ranks = config_.tensor = config_.context = 1, config_.shard = "none";
  }
}

TEST_F(Preference, EveryRecipeBeginsAtTheReferenceAndLearns) {
  config_.steps = 15, config_.dpo.beta = 0.5;
  for (const char* method : {"lora", "dora", "none"})
    for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
      if (std::string(method) == "dora" && std::string(recipe) != "bf16") continue;
      config_.adapter = {};
      config_.adapter.method = method, config_.recipe = recipe;
      run(fmt::format("{}_{}", method, recipe));
      // Scales of a whole tensor are those of the pairs beside it, which the reference saw in another order.
      const bool per_tensor = std::string(recipe) == "fp8-current" || std::string(recipe) == "fp8-delayed";
      EXPECT_NEAR(steps_[0].loss, std::log(2), per_tensor ? 0.01 : 1e-6) << method << " " << recipe;
      EXPECT_LT(steps_.back().loss, 0.8 * steps_[0].loss) << method << " " << recipe;
    }
}

TEST_F(Preference, ResumesWithTheSameBitsAndReadsTheReference) {
  config_.steps = 9, config_.global_batch = 16;
  const TrainResult straight = run("straight");
  const auto references = [&](const std::string& out) {
    std::vector<std::string> found;
    for (const std::string& name : list_folder(folder_.file(out)))
      if (name.starts_with("reference_")) found.push_back(folder_.file(out) + "/" + name);
    return found;
  };
  config_.out = folder_.file("interrupted");
  struct Stop {};
  EXPECT_THROW(train(config_, {.on_step =
                                   [](const RunState& run, const StepResult&) {
                                     if (run.step == 7) throw Stop{};
                                   }}),
               Stop);
  ASSERT_EQ(references("interrupted").size(), 1u);
  EXPECT_EQ(read_file(references("interrupted")[0]), read_file(references("straight")[0]));
  const TrainResult resumed = run("interrupted");
  EXPECT_EQ(steps_.size(), 4u) << "from step 5 on";
  for (const char* name : {"/trained.safetensors", "/optimizer.safetensors", "/adapter_model.safetensors"})
    EXPECT_EQ(read_file(resumed.checkpoint + name), read_file(straight.checkpoint + name)) << name;

  // It is read, not made: another one in its place changes the run. One that is damaged, or of another key, is made
  // again.
  const std::string path = references("straight")[0], sound = read_file(path);
  remove_path(folder_.file("interrupted"));
  make_folders(folder_.file("interrupted"));
  const std::string copy = folder_.file("interrupted") + path.substr(path.rfind('/'));
  std::string other = sound;
  for (size_t i = other.size() - 16 * kPairs; i < other.size(); i += 8) other[i + 3] ^= 1;
  write_file(copy, other);
  run("interrupted");
  EXPECT_GT(std::abs(steps_[0].loss - std::log(2)), 1e-3);
  remove_path(folder_.file("interrupted"));
  make_folders(folder_.file("interrupted"));
  write_file(copy, sound.substr(0, sound.size() / 2));
  run("interrupted");
  EXPECT_NEAR(steps_[0].loss, std::log(2), 1e-6);
  EXPECT_EQ(read_file(copy), sound);
  remove_path(folder_.file("interrupted"));
  make_folders(folder_.file("interrupted"));
  const size_t key = other.find(" length ");
  ASSERT_NE(key, std::string::npos);
  other[key + 1] = 'L';
  write_file(copy, other);
  run("interrupted");
  EXPECT_EQ(read_file(copy), sound);

  // Other data, another reference: another file; a run does not go on with another one.
  make_pairs("others", kPairs, 2);
  config_.train_data = folder_.file("others");
  run("elsewhere");
  config_.train_data = folder_.file("pairs"), config_.dpo.reference = straight.checkpoint;
  EXPECT_FALSE(error_of([&] { run("interrupted"); }).empty());
  config_.dpo.reference = "";
  RunConfig further = config_;
  further.objective = "next_token", further.adapter = {}, further.train_data = folder_.file("text");
  further.validation_data = "", further.out = folder_.file("further"), further.steps = 5, further.global_batch = 0;
  config_.model_from = train(further).checkpoint;
  config_.steps = 12;
  const std::string error = error_of([&] { run("interrupted"); });
  EXPECT_NE(error.find("was trained on other frozen weights"), std::string::npos) << error;
  run("elsewhere_too");
  EXPECT_NE(references("elsewhere_too")[0].substr(path.rfind('/')), path.substr(path.rfind('/')));
}

TEST_F(Preference, RefusesWhatDoesNotFit) {
  const RunConfig fits = config_;
  const auto expect_error = [&](const std::string& part) {
    const std::string error = error_of([&] { run("refused"); });
    EXPECT_NE(error.find(part), std::string::npos) << error;
    config_ = fits;
  };
  config_.objective = "next_token", config_.separate_documents = true;
  expect_error("has pairs of answers, chosen and rejected: set train.objective=dpo");
  config_.train_data = folder_.file("text");
  expect_error("learns from pairs of answers, and " + folder_.file("text") + " has none");
  config_.model_from = "", config_.adapter = {};
  expect_error("set model.from to the folder");
  config_.adapter = {}, config_.adapter.method = "prompt_tuning";
  expect_error("use lora or dora");
  config_.pipeline = 2;
  expect_error("parallel.pipeline=2");
  config_.dpo.loss = "ipo", config_.dpo.label_smoothing = 0.1;
  expect_error("dpo.label_smoothing=0.1 is of dpo.loss=sigmoid");
  config_.objective = "next_token", config_.dpo.beta = 0.5;
  expect_error("dpo.* are set, but train.objective=next_token");
  config_.sequence_length = 16;
  expect_error("set data.sequence_length=24");
  config_.balance_loss = 0.1;
  expect_error("model.balance_loss 0.1");
  EXPECT_NE(error_of([&] { check_scores_sequences(fits); }).find("eval.tasks with train.objective=dpo"),
            std::string::npos);
}

TEST_F(Preference, IsPlannedForGpus) {
  for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed", "fp8-block"})
    for (const char* loss : {"sigmoid", "ipo"}) {
      config_.recipe = recipe, config_.dpo.loss = loss;
      const PreferenceModel model(read_model_config(base_), config_);
      const PlanReport report = plan_training(model, config_, h200_target());
      EXPECT_GT(report.frozen_bytes, 0) << recipe;
      EXPECT_NE(to_text(report, h200_target()).find("one micro-batch of 8 pairs"), std::string::npos);
    }
}

}  // namespace
}  // namespace octet
