// Adapters on a base that is held in NF4: the bits of a base with the dequantized weights, for every family, kind and
// recipe; folders of bitsandbytes as they are; ranks, resumes; bytes.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "ir/nf4.h"
#include "train/adapter_settings.h"
#include "train/adapter_weights.h"
#include "train/batches.h"
#include "train/plan_report.h"
#include "train/testing/adapter_run.h"
#include "weights/fill_nf4.h"
#include "weights/nf4_folder.h"
#include "weights/quantize_nf4.h"

namespace octet {
namespace {

// The weights of `base`, of which those in `held` are as NF4 rounds them.
class RoundedWeights : public WeightSource {
 public:
  RoundedWeights(const WeightSource& base, std::set<std::string> held) : base_(base), held_(std::move(held)) {
    config_ = base.config(), special_ = base.special();
  }
  ParamView view(const std::string& param, const Shape& shape) const override {
    ParamView own = base_.view(param, shape);
    if (!held_.contains(param)) return own;
    auto [values, added] = values_.try_emplace(param);
    if (added) values->second = round_to_nf4(own, kNf4Nested);
    return view_of(DType::kF32, values->second.data(), own.rows, own.cols, param);
  }

 private:
  const WeightSource& base_;
  std::set<std::string> held_;
  mutable std::map<std::string, std::vector<float>> values_;
};

struct Trained {
  std::vector<double> losses, norms;
  std::set<std::string> in_codes;
};

// Three steps of two micro-batches of random tokens.
Trained train_steps(const WeightSource& base, const AdapterSpec& adapter, const std::string& recipe,
                    Recompute recompute) {
  ModelConfig model = base.config();
  model.dropout = 0;
  StepperOptions options{.compile = {.target = cpu_target(), .recipe = parse_recipe(recipe), .recompute = recompute}};
  Stepper stepper(LanguageModel(model, 2, 12, false, adapter), options);
  load_adapted(base, adapter, "", 1, stepper.executor(), {});
  Philox random(3);
  std::vector<Batch> batches;
  for (int i = 0; i < 2; ++i) {
    BatchPacker packer(2, 12, false);
    for (int s = 0; s < 2; ++s) {
      std::vector<int32_t> tokens(13);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(static_cast<uint64_t>(model.vocab_size)));
      packer.add(tokens, {0});
    }
    batches.push_back(packer.finish());
  }
  Trained result;
  for (int64_t step = 1; step <= 3; ++step) {
    const StepResult done = stepper.step({.micro_batches = batches, .lr = 0.01, .step = step, .seed = 1});
    result.losses.push_back(done.loss), result.norms.push_back(done.grad_norm);
  }
  for (const Nf4Param& param : nf4_params(stepper.plan().program)) result.in_codes.insert(param.param);
  return result;
}

void expect_dequantized_bits(const WeightSource& base, const std::string& method, const std::string& recipe,
                             Recompute recompute, const std::string& what) {
  AdapterSpec adapter = adapter_spec({.method = method, .rank = 4}, base.config());
  adapter.nf4 = kNf4Nested;
  const Trained held = train_steps(base, adapter, recipe, recompute);
  EXPECT_FALSE(held.in_codes.empty()) << what;
  adapter.nf4 = 0;
  const Trained plain = train_steps(RoundedWeights(base, held.in_codes), adapter, recipe, recompute);
  EXPECT_TRUE(plain.in_codes.empty()) << what;
  EXPECT_EQ(held.losses, plain.losses) << what;
  EXPECT_EQ(held.norms, plain.norms) << what;
  EXPECT_NE(held.losses[0], held.losses[2]) << what;
}

class Nf4Base : public AdapterRun {
 protected:
  void SetUp() override {
    AdapterRun::SetUp();
    config_.hidden = 64, config_.intermediate = 128;
  }
};

TEST_F(Nf4Base, TrainsAsTheDequantizedWeightsDoToTheBit) {
  const RunConfig fresh = config_;
  for (const char* family : {"llama", "gpt2", "mixtral"}) {
    config_ = fresh;
    use_base(family, 5);
    const auto base = open_weights(base_);
    for (const char* recipe : {"fp32", "bf16"})
      expect_dequantized_bits(*base, "lora", recipe, Recompute::kNone, fmt::format("{} {}", family, recipe));
    if (std::string(family) == "mixtral") continue;
    expect_dequantized_bits(*base, "dora", "fp32", Recompute::kFull, fmt::format("{} dora", family));
  }
}

// Tiny ones too, whose rows are no whole blocks.
TEST(Nf4Vectors, EveryFamilyTrainsAsItsDequantizedWeightsDo) {
  for (const char* name : {"adapters/base_llama", "adapters/base_gpt2", "adapters/base_bloom", "adapters/base_qwen2",
                           "adapters/base_qwen3_moe", "nf4/llama_nf4"}) {
    const std::string folder = test_data_path(std::string("adapt/") + name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt");
    expect_dequantized_bits(*open_weights(folder), "lora", "fp32", Recompute::kNone, name);
  }
}

// What bitsandbytes stored is held as it is: the values that reading the folder gives.
TEST(Nf4Vectors, AFolderOfBitsandbytesIsTakenAsItIs) {
  const std::string folder = test_data_path("adapt/nf4/llama_nf4");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/nf4");
  const auto base = open_weights(folder);
  AdapterSpec adapter = adapter_spec({.method = "lora", .rank = 4}, base->config());
  const Trained plain = train_steps(*base, adapter, "fp32", Recompute::kNone);
  adapter.nf4 = nf4_group_of(folder).value();
  EXPECT_EQ(adapter.nf4, kNf4Nested);
  const Trained held = train_steps(*base, adapter, "fp32", Recompute::kNone);
  EXPECT_EQ(held.in_codes.size(), 7U * static_cast<size_t>(base->config().layers));
  EXPECT_EQ(held.losses, plain.losses);
  EXPECT_EQ(held.norms, plain.norms);
}

TEST_F(Nf4Base, AFloatFolderIsQuantizedAsItsFolderOfBitsandbytes) {
  use_base("llama", 5);
  quantize_to_nf4(*open_weights(base_), "", folder_.file("nf4"));
  config_.adapter.base = "nf4", config_.steps = 4;
  run("of_floats");
  const std::vector<double> of_floats = losses_;
  config_.model_from = folder_.file("nf4");
  run("of_codes");
  // Embedding, head and norms are bf16 in the folder.
  ASSERT_EQ(losses_.size(), of_floats.size());
  for (size_t i = 0; i < of_floats.size(); ++i) EXPECT_NEAR(losses_[i], of_floats[i], 0.01);
  config_.adapter.base = "recipe";
  const std::vector<double> of_codes = losses_;
  run("dequantized");
  EXPECT_EQ(losses_, of_codes);
}

TEST_F(Nf4Base, ResumesWithTheSameBits) {
  use_base("llama", 5);
  config_.steps = 8, config_.adapter.dropout = 0.1, config_.recipe = "fp8-current", config_.adapter.base = "nf4";
  config_.checkpoint_interval = 4;
  const TrainResult straight = run("straight");
  config_.out = folder_.file("interrupted");
  struct Stop {};
  EXPECT_THROW(train(config_, {.on_step =
                                   [](const RunState& run, const StepResult&) {
                                     if (run.step == 6) throw Stop{};
                                   }}),
               Stop);
  const TrainResult resumed = run("interrupted");
  EXPECT_EQ(losses_.size(), 4U) << "from step 4 on";
  for (const char* name : {"/trained.safetensors", "/optimizer.safetensors", "/adapter_model.safetensors"})
    EXPECT_EQ(read_file(resumed.checkpoint + name), read_file(straight.checkpoint + name)) << name;
}

TEST_F(Nf4Base, RanksLearnWhatOneDoes) {
  config_.hidden = 128, config_.intermediate = 256;
  use_base("llama", 5);
  quantize_to_nf4(*open_weights(base_), "", folder_.file("rounded"), DType::kF32);
  config_.model_from = folder_.file("rounded");
  config_.steps = 3, config_.adapter.base = "nf4";
  run("one");
  const std::vector<double> one = losses_;
  const RunConfig fresh = config_;
  struct Ranks {
    int64_t tensor = 1, data = 1, pipeline = 1;
    const char* shard = "none";
  };
  for (const Ranks& ranks : {Ranks{.tensor = 2},
                             {.data = 2, .shard = "parameters"},
                             {.pipeline = 2},
                             {.tensor = 2, .data = 2, .shard = "optimizer"}}) {
    config_ = fresh;
    config_.tensor = ranks.tensor, config_.data_ranks = ranks.data, config_.pipeline = ranks.pipeline;
    config_.shard = ranks.shard;
    const std::string name = fmt::format("ranks_{}_{}_{}", ranks.tensor, ranks.data, ranks.pipeline);
    run(name);
    ASSERT_EQ(losses_.size(), one.size());
    // Each as a base of the dequantized weights on as many ranks, whose sums are of one order.
    const std::vector<double> held = losses_;
    config_.model_from = folder_.file("rounded"), config_.adapter.base = "recipe";
    run(name + "_plain");
    EXPECT_EQ(held, losses_) << name;
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(held[i], one[i], i == 0 ? 2e-5 : 2e-4) << name;
  }
}

// A bit more than half a byte a weight, and no values of more than a weight at a time.
TEST_F(Nf4Base, CodesAreAllThatIsHeld) {
  config_.hidden = 256, config_.intermediate = 512, config_.layers = 6;
  use_base("llama", 1);
  config_.recipe = "bf16";
  const PlanReport plain = plan_training(LanguageModel(config_), config_, cpu_target());
  config_.adapter.base = "nf4";
  const PlanReport held = plan_training(LanguageModel(config_), config_, cpu_target());
  const int64_t weights = config_.layers * (256 * (256 * 2 + 128 * 2) + 3 * 256 * 512);
  const double bits =
      16 - 8.0 * static_cast<double>(plain.frozen_bytes - held.frozen_bytes) / static_cast<double>(weights);
  EXPECT_GT(bits, 4.125);
  EXPECT_LT(bits, 4.4);
  EXPECT_LE(held.total_bytes, plain.total_bytes - (plain.frozen_bytes - held.frozen_bytes) + 4 * 2 * 256 * 512);
}

TEST_F(Nf4Base, RefusesWhatItCannotHold) {
  const auto expect_error = [&](const std::string& part) {
    const std::string error = error_of([&] { run("refused"); });
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  use_base("llama", 2);
  config_.adapter.base = "nf4", config_.tensor = 2;
  expect_error("adapter.base=nf4, parallel.tensor=2: a rank's part of layers.0.attn.o.weight [64,64] has rows of 32");
  config_.tensor = 1, config_.adapter.method = "none";
  expect_error("adapter.method=none trains the whole model");
  config_.adapter.method = "lora";
  quantize_to_nf4(*open_weights(base_), "", folder_.file("fp4"));
  const std::string path = folder_.file("fp4") + "/config.json";
  std::string json = read_file(path);
  json.replace(json.find("\"nf4\""), 5, "\"fp4\"");
  write_file(path, json);
  config_.model_from = folder_.file("fp4");
  expect_error("is in fp4: leave adapter.base out");
}

}  // namespace
}  // namespace octet
