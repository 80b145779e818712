// Runs that train an adapter on a small base, all made here: what is frozen stays, zero adapters change nothing, what
// is trained equals the merged weights, resumes and ranks give what one uninterrupted run gives.
#include "train/testing/adapter_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/testing/test_error.h"
#include "train/adapter_weights.h"
#include "train/plan_report.h"

namespace octet {
namespace {

TEST_F(AdapterRun, AZeroAdapterIsItsBaseToTheBit) {
  use_base("llama", 5);
  for (const char* recipe : {"fp32", "bf16"}) {
    config_.recipe = recipe;
    const LanguageModel adapted(config_);
    const auto with = stepper_of(adapted);
    adapted.load(base_, with->executor(), {});
    config_.adapter = {};
    const LanguageModel plain(config_);
    const auto without = stepper_of(plain);
    plain.load(base_, without->executor(), {});
    config_.adapter.method = "lora";
    const Batch batch = plain.batch(DataSplit::kValidation, 0);
    EXPECT_EQ(with->evaluate(batch), without->evaluate(batch)) << recipe;
  }
}

// LoRA, DoRA, a part of the linears, biases and modules trained whole: the loss of the trained adapter is that of the
// base with the weights that follow from it.
TEST_F(AdapterRun, LearnsWhatTheMergedWeightsSay) {
  use_base("gpt2");
  config_.steps = 40;
  for (const char* method : {"lora", "dora"}) {
    config_.adapter.method = method, config_.adapter.bias = "lora_only", config_.adapter.train = {"ln_f"};
    const TrainResult result = run(method);
    EXPECT_LT(losses_.back(), losses_.front() - 0.2) << method;
    const LanguageModel adapted(config_);
    const auto with = stepper_of(adapted);
    adapted.load(result.checkpoint, with->executor(), {});
    RunConfig base_config = config_;
    base_config.adapter = {};
    const LanguageModel plain(base_config);
    const auto merged = stepper_of(plain);
    plain.load(base_, merged->executor(), {});
    EXPECT_EQ(values(with->executor(), "layers.0.attn.o.weight"), values(merged->executor(), "layers.0.attn.o.weight"));
    for (const std::string& name : adapted.adapter().trained) {
      const std::vector<float> trained = values(with->executor(), name);
      EXPECT_NE(trained, values(merged->executor(), name)) << name;
      write_logical(merged->executor(), find_logical_state(merged->plan().program, name, StateRole::kMaster),
                    std::as_bytes(std::span(trained)));
    }
    ASSERT_EQ(adapted.adapter().low_rank.size(), 8u);  // q, k, v in one, o, up, down of two layers
    for (const LowRank& low : adapted.adapter().low_rank) {
      const std::vector<float> a = values(with->executor(), low.name + ".lora_a"),
                               b = values(with->executor(), low.name + ".lora_b"),
                               magnitude = low.dora ? values(with->executor(), low.name + ".magnitude") : a;
      size_t row = 0;
      for (const std::string& param : low.params) {
        const LogicalState weight = find_logical_state(merged->plan().program, param, StateRole::kMaster);
        std::vector<float> w = values(merged->executor(), param);
        const auto rows = static_cast<size_t>(weight.type.shape[0]), cols = static_cast<size_t>(weight.type.shape[1]),
                   rank = static_cast<size_t>(low.rank);
        for (size_t r = 0; r < rows; ++r, ++row) {
          double square = 0;
          for (size_t k = 0; k < cols; ++k) {
            double sum = 0;
            for (size_t i = 0; i < rank; ++i) sum += static_cast<double>(b[row * rank + i]) * a[i * cols + k];
            w[r * cols + k] += static_cast<float>(low.scale * sum);
            square += static_cast<double>(w[r * cols + k]) * w[r * cols + k];
          }
          if (!low.dora) continue;
          for (size_t k = 0; k < cols; ++k)
            w[r * cols + k] = static_cast<float>(w[r * cols + k] * magnitude[row] / std::sqrt(square));
        }
        write_logical(merged->executor(), weight, std::as_bytes(std::span(w)));
      }
    }
    const Batch batch = plain.batch(DataSplit::kValidation, 0);
    EXPECT_NEAR(with->evaluate(batch)[0] / merged->evaluate(batch)[0], 1, 2e-5) << method;
  }
}

// Every kind begins at its base and learns, also over two data ranks.
TEST_F(AdapterRun, OtherKindsBeginAtTheirBaseAndLearn) {
  struct Kind {
    const char* architecture;
    void (*set)(AdapterSettings&);
    bool begins_elsewhere = false;
  };
  const Kind kinds[] = {
      {"mixtral",
       [](AdapterSettings& a) {
         a.targets = {"experts.gate", "experts.down", "router", "q_proj"};
       }},
      {"llama",
       [](AdapterSettings& a) {
         a.targets = {"embed_tokens", "lm_head"};
       }},
      {"gpt2",
       [](AdapterSettings& a) {
         a.layers = {"1"}, a.ranks = {"c_proj=2"}, a.targets = {"attn.v", "c_proj"};
       }},
      {"gpt2",
       [](AdapterSettings& a) {
         a.token_rows = {"9", "3", "4"};
       }},
      {"gpt2", [](AdapterSettings& a) { a.bias = "all", a.exclude = {"c_attn"}, a.targets = {"all-linear"}; }},
      {"llama", [](AdapterSettings& a) { a = {}, a.method = "prompt_tuning", a.virtual_tokens = 4; }, true},
      {"gpt2", [](AdapterSettings& a) { a = {}, a.method = "p_tuning", a.virtual_tokens = 3; }, true},
      {"llama",
       [](AdapterSettings& a) {
         a = {}, a.method = "p_tuning", a.virtual_tokens = 3;
         a.encoder = "lstm", a.encoder_hidden = 8;
       },
       true},
  };
  const RunConfig fresh = config_;
  for (const Kind& kind : kinds) {
    const auto at = &kind - kinds;
    config_ = fresh;
    use_base(kind.architecture);
    config_.sequence_length = 12;
    config_.train_data = config_.validation_data = folder_.file("few");
    const RunConfig plain_config = [&] {
      RunConfig c = config_;
      c.adapter = {};
      return c;
    }();
    kind.set(config_.adapter);
    const LanguageModel adapted(config_), plain(plain_config);
    const auto with = stepper_of(adapted), without = stepper_of(plain);
    adapted.load(base_, with->executor(), {});
    plain.load(base_, without->executor(), {});
    const double begin = with->evaluate(adapted.batch(DataSplit::kValidation, 0))[0];
    const double base = without->evaluate(plain.batch(DataSplit::kValidation, 0))[0];
    EXPECT_NEAR(begin / base, 1, kind.begins_elsewhere ? 0.5 : 1e-6) << at;
    config_.steps = 4;
    run(fmt::format("kind_{}_one", at));
    const std::vector<double> one = losses_;
    config_.data_ranks = 2;
    run(fmt::format("kind_{}_two", at));
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(losses_[i], one[i], 2e-5) << at;
    config_.data_ranks = 1, config_.steps = 30, config_.recipe = "bf16", config_.recompute = "full";
    const TrainResult result = run(fmt::format("kind_{}", at));
    adapted.load(result.checkpoint, with->executor(), {});
    EXPECT_LT(with->evaluate(adapted.batch(DataSplit::kValidation, 0))[0], begin - 0.02 * base) << at;
  }
}

TEST_F(AdapterRun, ResumesWithTheSameBitsAndSavesTheAdapterAlone) {
  use_base("llama");
  config_.steps = 12, config_.adapter.dropout = 0.1, config_.recipe = "fp8-current";
  const TrainResult straight = run("straight");
  const TensorSource saved(straight.checkpoint + "/trained.safetensors");
  EXPECT_NE(saved.find_type("layers.0.attn.q.lora_a"), nullptr);
  EXPECT_EQ(saved.find_type("layers.0.attn.q.weight"), nullptr);
  config_.out = folder_.file("interrupted");
  struct Stop {};
  EXPECT_THROW(train(config_, {.on_step =
                                   [](const RunState& run, const StepResult&) {
                                     if (run.step == 8) throw Stop{};
                                   }}),
               Stop);
  const TrainResult resumed = run("interrupted");
  EXPECT_EQ(losses_.size(), 7u) << "from step 5 on";
  for (const char* name : {"/trained.safetensors", "/optimizer.safetensors", "/adapter_model.safetensors"})
    EXPECT_EQ(read_file(resumed.checkpoint + name), read_file(straight.checkpoint + name)) << name;
  // The base may lie elsewhere; one with another last value is another.
  const std::string moved = folder_.file("moved"), weights = moved + "/model.safetensors";
  std::filesystem::copy(base_, moved, std::filesystem::copy_options::recursive);
  config_.model_from = moved, config_.steps = 13;
  EXPECT_EQ(run("interrupted").run.step, 13);
  std::string bytes = read_file(weights);
  bytes.back() ^= 1;
  write_file(weights, bytes);
  config_.steps = 14;
  EXPECT_NE(error_of([&] { run("interrupted"); }).find("was trained on other frozen weights"), std::string::npos)
      << error_of([&] { run("interrupted"); });
  config_.model_from = base_;
  config_.adapter.rank = 8;
  EXPECT_NE(error_of([&] { run("interrupted"); }).find("lora_a is f32[4,32], this run's adapter wants [8,32]"),
            std::string::npos)
      << error_of([&] { run("interrupted"); });
}

TEST_F(AdapterRun, EveryRecipeLearnsAndHoldsTheBaseOnce) {
  use_base("llama");
  config_.steps = 40;
  const int64_t matrices = 2 * (32 * 32 * 2 + 2 * 16 * 32 + 3 * 32 * 64);
  for (const auto& [recipe, width] :
       {std::pair("fp32", 4), {"bf16", 2}, {"fp8-current", 1}, {"fp8-delayed", 1}, {"fp8-block", 1}}) {
    config_.recipe = recipe;
    run(recipe);
    EXPECT_TRUE(std::isfinite(losses_.back())) << recipe;
    EXPECT_LT(losses_.back(), losses_.front() - 0.2) << recipe;
    const PlanReport plan = plan_training(LanguageModel(config_), config_, cpu_target());
    const int64_t tables = 2 * kVocab * 32 * (width == 4 ? 4 : 2), norms = 5 * 32 * 4, scales = 14 * 4;
    EXPECT_GE(plan.frozen_bytes, matrices * width + tables + norms) << recipe;
    EXPECT_LE(plan.frozen_bytes, matrices * width + tables + norms + scales) << recipe;
    EXPECT_EQ(plan.weight_bytes, 4 * plan.trained_parameters) << recipe;
    EXPECT_EQ(plan.moment_bytes, 8 * plan.trained_parameters) << recipe;
  }
}

// Routers stay in float32 under every recipe, and so does what adapts them and, for DoRA, their weights.
TEST_F(AdapterRun, RoutersOfMixturesAreAdaptedInEveryRecipe) {
  use_base("qwen2_moe", 4);
  config_.steps = 6;
  for (const char* method : {"lora", "dora"}) {
    for (const char* recipe : {"bf16", "fp8-block"}) {
      config_.adapter.method = method, config_.recipe = recipe;
      run(std::string(method) + recipe);
      EXPECT_LT(losses_.back(), losses_.front()) << method << " " << recipe;
    }
  }
}

TEST_F(AdapterRun, RanksLearnWhatOneDoes) {
  struct Ranks {
    int64_t tensor = 1, data = 1, context = 1, pipeline = 1;
    bool sequence = false;
    const char* shard = "none";
  };
  const Ranks layouts[] = {{.tensor = 2},
                           {.data = 2, .shard = "parameters"},
                           {.pipeline = 2},
                           {.tensor = 2, .data = 2, .shard = "optimizer"},
                           {.tensor = 2, .context = 2, .sequence = true}};
  for (const auto& [architecture, method] : {std::pair("llama", "lora"), {"gpt2", "dora"}}) {
    use_base(architecture, 5);
    config_.steps = 3, config_.adapter.method = method;
    config_.adapter.bias = "lora_only";  // of GPT-2, whose q, k and v share A
    run(fmt::format("{}_one", method));
    const RunConfig one_rank = config_;
    const std::vector<double> one = losses_;
    for (const Ranks& ranks : layouts) {
      const auto at = &ranks - layouts;
      config_.tensor = ranks.tensor, config_.data_ranks = ranks.data, config_.context = ranks.context;
      config_.pipeline = ranks.pipeline, config_.sequence = ranks.sequence, config_.shard = ranks.shard;
      run(fmt::format("{}_{}", method, at));
      ASSERT_EQ(losses_.size(), one.size());
      for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(losses_[i], one[i], 2e-5) << method << " " << at;
    }
    config_ = one_rank;
    config_.model_from = "", config_.adapter = {}, config_.train_data = config_.validation_data = folder_.file("base");
  }
}

TEST_F(AdapterRun, RefusesWhatDoesNotFit) {
  use_base("llama", 5);
  const auto expect_error = [&](const std::string& part) {
    const std::string error = error_of([&] { run("refused"); });
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  const AdapterSettings lora = config_.adapter;
  config_.adapter.targets = {"q_prjo"};
  expect_error("adapter.targets: no module of the llama model is called q_prjo; the nearest is");
  config_.adapter = lora, config_.adapter.ranks = {"(=8"};
  expect_error("adapter.rank_pattern");
  config_.adapter = lora, config_.adapter.train = {"lm_heed"};
  expect_error("adapter.train: no module");
  config_.adapter = lora, config_.adapter.layers = {"2"};
  expect_error("adapter.layers: 2 of a model of 2 layers");
  config_.adapter = lora, config_.adapter.ranks = {"q_proj"};
  expect_error("adapter.rank_pattern: 'q_proj' (want PATTERN=NUMBER");
  config_.adapter = lora, config_.adapter.method = "none";
  expect_error("adapter.method=none trains the whole model");
  config_.adapter = lora, config_.model_from = "";
  expect_error("set model.from to its folder");
}

}  // namespace
}  // namespace octet
