// A model on several CPU ranks against one rank, and what is left when a rank is lost.
#include "infer/ranked_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>

#include "base/error.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "dist/local_ranks.h"
#include "infer/testing/engine_test.h"
#include "infer/testing/serving_test_driver.h"

namespace octet {
namespace {

using serving_test::Driver;
using serving_test::kPrompt;
using serving_test::Text;

ServingOptions small_options(int64_t tensor, const char* recipe = "fp32") {
  return {.engine = {.tensor = tensor,
                     .context = 64,
                     .max_sequences = 4,
                     .max_step_tokens = 32,
                     .block_size = 4,
                     .kv_cache_bytes = 1 << 20},
          .target = cpu_target(),
          .recipe = parse_recipe(recipe)};
}

class RankedGoldens : public testing::TestWithParam<const char*> {};

TEST_P(RankedGoldens, WriteTheGreedyTextOfTheModel) {
  const std::string folder = test_data_path(std::string("hf_goldens/") + GetParam());
  if (folder.empty()) GTEST_SKIP() << missing_test_data(GetParam());
  const auto weights = open_weights(folder);
  const std::vector<int32_t> wanted = serving_test::greedy_ids(folder);
  const auto runner = open_runner(*weights, small_options(2));
  Text text{{wanted.begin(), wanted.begin() + kPrompt}, 3, 7};
  Driver driver(*runner);
  driver.add(text, 6, false);
  driver.run();
  driver.add(text, kPrompt - 6, true);
  text.tokens.push_back(driver.run().ids[0]);
  serving_test::decode(*runner, text, wanted.size(), /*on_device=*/true);
  EXPECT_EQ(text.tokens, wanted);
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, RankedGoldens,
                         testing::Values("gpt2", "llama_gqa_rope3", "bloom", "mistral_swa", "gptj", "qwen3",
                                         "falcon_mqa", "starcoder_mqa", "gemma", "phi", "opt", "mpt", "glm"),
                         [](const auto& info) { return std::string(info.param); });

ModelConfig tiny_model() {
  return {.architecture = "llama",
          .vocab_size = 61,  // divides by nothing: padded
          .max_positions = 64,
          .hidden = 128,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 128,  // groups of 128 on each rank
          .intermediate = 256};
}

// Weights large enough that every layer tells in the logits.
class RandomWeights final : public WeightSource {
 public:
  explicit RandomWeights(const ModelConfig& config) {
    config_ = config;
    uint64_t stream = 0;
    for (const auto& [param, shape] : param_shapes(config)) {
      Philox rng(7, ++stream);
      std::vector<float>& values = values_[param];
      for (int64_t i = 0; i < shape.elements(); ++i)
        values.push_back(static_cast<float>(shape.rank() == 1 ? 1 + 0.1 * rng.normal() : 0.15 * rng.normal()));
    }
  }
  ParamView view(const std::string& param, const Shape& shape) const override {
    return view_of(DType::kF32, values_.at(param).data(), shape[0], shape.elements() / shape[0], param);
  }
  void spoil(const std::string& param, int64_t element) { values_[param][static_cast<size_t>(element)] = NAN; }

 private:
  std::map<std::string, std::vector<float>> values_;
};

constexpr int32_t kTexts = 6;

// Log-probabilities of a token behind each sequence.
std::vector<float> scores(Runner& runner) {
  std::vector<Text> texts(kTexts);
  Driver driver(runner);
  for (int32_t t = 0; t < kTexts; ++t) {
    texts[static_cast<size_t>(t)] = {some_ids(2 + t % 2, static_cast<uint64_t>(t)), t, 2 * t};
    driver.add(texts[static_cast<size_t>(t)], 2 + t % 2, true);
    driver.sampling().entries.insert(driver.sampling().entries.end(), {t, 3 * t});
    driver.sampling().values.insert(driver.sampling().values.end(), {1000, 1, 0});
  }
  const SampleOutput output = driver.run();
  return {output.logprobs.begin(), output.logprobs.end()};
}

struct Setting {
  const char* recipe;
  double distance;  // of the scores from one rank's, by their own spread
  bool siblings = false;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.recipe; }

class RankedRecipes : public testing::TestWithParam<Setting> {};

// Parts of rows have scales of their own (docs/numerics.md), and sums round in other parts. The bounds are two to ten
// times the distances seen.
TEST_P(RankedRecipes, ScoreAsOneRankDoes) {
  const RandomWeights weights(tiny_model());
  std::vector<std::vector<float>> found;
  for (const int64_t tensor : {1, 2}) {
    ServingOptions options = small_options(tensor, GetParam().recipe);
    options.engine.max_sequences = kTexts;
    options.engine.max_step_tokens = 16;
    if (GetParam().siblings) options.target.allow(Producer::kProduct, {FusionPart::kSiblings});
    const Program program = build_serving_program(weights.config(), options).plan.program;
    const bool merged = std::ranges::any_of(program.states(), [](const StateEntry& entry) {
      return entry.param == "layers.0.attn.q+k+v.weight" && entry.placements.size() == 3;
    });
    EXPECT_EQ(merged, GetParam().siblings);
    found.push_back(scores(*open_runner(weights, options)));
  }
  double mean = 0, spread = 0, distance = 0;
  for (const float score : found[0]) mean += score / kTexts;
  for (size_t i = 0; i < found[0].size(); ++i) {
    spread += std::pow(found[0][i] - mean, 2);
    distance += std::pow(found[1][i] - found[0][i], 2);
  }
  ASSERT_GT(spread, 1);
  EXPECT_LE(std::sqrt(distance / spread), GetParam().distance);
}

INSTANTIATE_TEST_SUITE_P(Recipes, RankedRecipes,
                         testing::Values(Setting{"fp32", 1e-5}, Setting{"bf16", 0.05},
                                         Setting{"fp8-current", 0.1, true}, Setting{"fp8-block", 0.1},
                                         Setting{"int8", 0.1}, Setting{"w4i8", 0.1, true}, Setting{"w4a8", 0.1},
                                         Setting{"w4a16", 0.05}),
                         [](const auto& info) {
                           std::string name = info.param.recipe;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// A runner that does something before each call of its own.
class WatchedRunner final : public Runner {
 public:
  using Watch = std::function<void(int64_t forward)>;
  WatchedRunner(std::unique_ptr<Runner> runner, Watch before_forward, std::vector<int32_t>* ids = nullptr)
      : runner_(std::move(runner)), before_forward_(std::move(before_forward)), ids_(ids) {}

  const RunnerLimits& limits() const override { return runner_->limits(); }
  void copy_blocks(std::span<const BlockCopy> copies) override { runner_->copy_blocks(copies); }
  void forward(const StepInput& input) override {
    before_forward_(++forwards_);
    runner_->forward(input);
  }
  void sample(const SampleInput& input) override { runner_->sample(input); }
  SampleOutput wait() override {
    const SampleOutput output = runner_->wait();
    if (ids_ != nullptr) ids_->insert(ids_->end(), output.ids.begin(), output.ids.end());
    return output;
  }
  int64_t padded_tokens(const StepInput& input) const override { return runner_->padded_tokens(input); }

 private:
  std::unique_ptr<Runner> runner_;
  Watch before_forward_;
  std::vector<int32_t>* ids_;
  int64_t forwards_ = 0;
};

using Watches = std::function<WatchedRunner::Watch(int32_t rank)>;

std::unique_ptr<RankedRunner> watched_ranks(const WeightSource& weights, const Watches& watches,
                                            std::vector<std::vector<int32_t>>* ids = nullptr, int32_t count = 2,
                                            double timeout = 60) {
  const RankedRunner::Open open = [&](const LocalRank& rank) -> std::unique_ptr<Runner> {
    const int32_t r = rank.ranks->rank();
    return std::make_unique<WatchedRunner>(make_runner(weights, small_options(count), {}, rank.ranks), watches(r),
                                           ids != nullptr ? &ids->at(static_cast<size_t>(r)) : nullptr);
  };
  return std::make_unique<RankedRunner>(std::make_unique<LocalRanks>(count, RankDevices(), timeout), open, timeout);
}

std::unique_ptr<EngineLoop> engine_on(std::unique_ptr<Runner> runner) {
  return std::make_unique<EngineLoop>(
      EngineParts{.runner = std::move(runner), .tokenizer = test_tokenizer(), .eos_ids = {kEos}},
      EngineOptions{.max_sequences = 4, .max_step_tokens = 32});
}

GenerationRequest endless(int64_t tokens = 40) {
  return {.prompt_ids = {1, 2}, .sampling = {.temperature = 0}, .max_tokens = tokens, .ignore_eos = true};
}

TEST(RankedRunner, EveryRankSamplesTheTokensOfOneRank) {
  const RandomWeights weights(tiny_model());
  std::vector<std::vector<int32_t>> ids(2);
  const auto none = [](int32_t) { return [](int64_t) {}; };
  std::vector<Collected> wanted, found;
  for (const bool ranks : {false, true}) {
    auto runner = ranks ? std::unique_ptr<Runner>(watched_ranks(weights, none, &ids))
                        : std::unique_ptr<Runner>(make_runner(weights, small_options(1)));
    auto engine = engine_on(std::move(runner));
    std::vector<GenerationStream> streams;
    for (uint64_t i = 0; i < 8; ++i) {
      GenerationRequest request = some_request(i);
      request.n = 1;
      streams.push_back(engine->submit(request));
    }
    for (GenerationStream& stream : streams) (ranks ? found : wanted).push_back(collect(stream)[0]);
  }
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(found[i].ids, wanted[i].ids) << "request " << i;
  EXPECT_FALSE(ids[0].empty());
  EXPECT_EQ(ids[0], ids[1]);
}

TEST(RankedRunner, EveryRankHasItsShareOfBytesAndTheBlocksOfTheLeast) {
  const RandomWeights weights(tiny_model());
  std::vector<EnginePlan> plans;
  for (const int64_t tensor : {1, 2}) {
    ServingOptions options = small_options(tensor);
    options.engine.kv_cache_bytes = 1 << 18;  // of each rank
    options.engine.planned = [&](const EnginePlan& plan) { plans.push_back(plan); };
    open_runner(weights, options);
  }
  ASSERT_EQ(plans.size(), 2u) << "rank 0 alone tells";
  EXPECT_LT(plans[1].weight_bytes, plans[0].weight_bytes * 6 / 10);
  EXPECT_EQ(plans[1].kv_blocks, 2 * plans[0].kv_blocks) << "a block has half the heads";
  EXPECT_EQ(plans[1].rank_free_bytes.size(), 2u);
}

TEST(RankedRunner, ARankReadsItsColumnsAlone) {
  ModelConfig config = tiny_model();
  RandomWeights weights(config);
  weights.spoil("layers.1.mlp.down.weight", config.intermediate - 1);  // a column of the last rank
  const std::string message = error_of([&] { open_runner(weights, small_options(2)); });
  EXPECT_TRUE(message.starts_with("rank 1 of 2: layers.1.mlp.down.weight")) << message;
}

TEST(RankedRunner, RefusesModelsThatRanksCannotShare) {
  const RandomWeights weights(tiny_model());
  const auto refused = [&](int64_t tensor, const std::string& message) {
    EXPECT_NE(error_of([&] { open_runner(weights, small_options(tensor)); }).find(message), std::string::npos);
  };
  refused(3, "4 heads do not divide among 3 ranks (want one of 1, 2, 4)");
  refused(4, "2 key heads do not divide among 4 ranks (want one of 1, 2)");
  ModelConfig mixture = tiny_model();
  mixture.experts.count = 4;
  EXPECT_NE(error_of([&] { check_ranks(mixture, small_options(2)); }).find("mixtures of experts"), std::string::npos);
}

// A rank that throws in a step: every request gets the reason, the others end, and so does this process's engine.
class LostRank : public testing::TestWithParam<std::pair<int32_t, int64_t>> {};

TEST_P(LostRank, EndsEveryRequestWithTheReason) {
  const auto [lost, forward] = GetParam();
  const RandomWeights weights(tiny_model());
  const auto watches = [&, at = forward, rank = lost](int32_t own) -> WatchedRunner::Watch {
    if (own != rank) return [](int64_t) {};
    return [at](int64_t number) { check(number != at, ErrorCode::kInternal, "its device is lost"); };
  };
  auto engine = engine_on(watched_ranks(weights, watches));
  std::vector<GenerationStream> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(engine->submit(endless()));
  const std::string reason = fmt::format("rank {} of 2: its device is lost", lost);
  for (GenerationStream& stream : streams) {
    const Collected text = collect(stream)[0];
    EXPECT_EQ(text.kind, ErrorKind::kDevice);
    EXPECT_NE(text.error.find(reason), std::string::npos) << text.error;
  }
  engine->drain();
  const Collected later = collect_one(engine->submit(endless()));
  EXPECT_EQ(later.kind, ErrorKind::kDevice);
  EXPECT_TRUE(engine->stats().broken);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LostRank,
                         testing::Values(std::pair(1, 1), std::pair(1, 9), std::pair(0, 1), std::pair(0, 9)));

TEST(RankedRunner, ASilentRankEndsTheStepInTime) {
  const RandomWeights weights(tiny_model());
  std::mutex silent;
  std::unique_lock until_seen(silent);
  const auto watches = [&](int32_t own) -> WatchedRunner::Watch {
    if (own == 0) return [](int64_t) {};
    return [&](int64_t number) {
      if (number == 3) const std::lock_guard wait(silent);
    };
  };
  auto engine = engine_on(watched_ranks(weights, watches, nullptr, 2, 0.5));
  const Collected text = collect_one(engine->submit(endless()));
  EXPECT_EQ(text.kind, ErrorKind::kDevice);
  EXPECT_NE(text.error.find("rank 0 has waited 0.5 s for rank 1"), std::string::npos) << text.error;
  until_seen.unlock();
}

// Runners that do not exchange: rank 0 waits for the answers of the others as for a device, and rank 1 ceases to
// answer.
class AnsweredRunner final : public Runner {
 public:
  AnsweredRunner(std::unique_ptr<Runner> runner, const LocalRank& rank, std::vector<std::atomic<int64_t>>& answers,
                 std::mutex& silent)
      : runner_(std::move(runner)), rank_(rank), answers_(answers), silent_(silent) {}

  const RunnerLimits& limits() const override { return runner_->limits(); }
  void copy_blocks(std::span<const BlockCopy> copies) override { runner_->copy_blocks(copies); }
  void forward(const StepInput& input) override {
    if (++forwards_ == 5 && rank_.ranks->rank() == 1) const std::lock_guard wait(silent_);
    runner_->forward(input);
  }
  void sample(const SampleInput& input) override { runner_->sample(input); }
  SampleOutput wait() override {
    const int64_t own = ++answers_[static_cast<size_t>(rank_.ranks->rank())];
    while (rank_.ranks->rank() == 0 && !std::ranges::all_of(answers_, [&](const auto& other) { return other >= own; }))
      rank_.check();
    return runner_->wait();
  }
  int64_t padded_tokens(const StepInput& input) const override { return runner_->padded_tokens(input); }

 private:
  std::unique_ptr<Runner> runner_;
  LocalRank rank_;
  std::vector<std::atomic<int64_t>>& answers_;
  std::mutex& silent_;
  int64_t forwards_ = 0;
};

TEST(RankedRunner, ARankThatCeasesToAnswerEndsEveryRequestInTime) {
  const RandomWeights weights(tiny_model());
  std::vector<std::atomic<int64_t>> answers(3);
  std::mutex silent;
  const RankedRunner::Open open = [&](const LocalRank& rank) -> std::unique_ptr<Runner> {
    return std::make_unique<AnsweredRunner>(make_runner(weights, small_options(1)), rank, answers, silent);
  };
  {
    auto engine = engine_on(
        std::make_unique<RankedRunner>(std::make_unique<LocalRanks>(3, RankDevices(), 0.5), open, /*timeout=*/0.5));
    EXPECT_EQ(collect_one(engine->submit(endless(2))).ids.size(), 2U) << "all answer";
    std::unique_lock until_seen(silent);
    std::vector<GenerationStream> streams;
    for (int i = 0; i < 6; ++i) streams.push_back(engine->submit(endless()));
    streams.push_back(engine->submit(endless()));
    for (GenerationStream& stream : streams) {
      const Collected text = collect(stream)[0];
      EXPECT_EQ(text.kind, ErrorKind::kDevice);
      EXPECT_NE(text.error.find("rank 0 of 3: rank 0 has waited 0.5 s for rank 1"), std::string::npos) << text.error;
    }
    EXPECT_EQ(collect_one(engine->submit(endless())).kind, ErrorKind::kDevice) << "later ones too";
    EXPECT_TRUE(engine->stats().broken);
    until_seen.unlock();
  }
  const auto next = engine_on(open_runner(weights, small_options(2)));
  EXPECT_EQ(collect_one(next->submit(endless())).ids.size(), 40U) << "the process goes on";
}

TEST(RankedRunner, ARankThatCannotStartEndsTheOthers) {
  const RandomWeights weights(tiny_model());
  for (const int32_t lost : {0, 1, 2}) {
    const RankedRunner::Open open = [&](const LocalRank& rank) -> std::unique_ptr<Runner> {
      check(rank.ranks->rank() != lost, ErrorCode::kOutOfMemory, "too small");
      return make_runner(weights, small_options(1));
    };
    EXPECT_EQ(error_of([&] { RankedRunner(std::make_unique<LocalRanks>(3, RankDevices()), open); }),
              fmt::format("rank {} of 3: too small", lost));
  }
}

TEST(RankedRunner, ManyStartAndEnd) {
  const RandomWeights weights(tiny_model());
  for (int i = 0; i < 3; ++i) EXPECT_GT(open_runner(weights, small_options(2))->limits().rows, 0);
}

}  // namespace
}  // namespace octet
