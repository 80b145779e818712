// The serving runner on the GPU: greedy texts of golden models in float32, fed from the device, in mixed batches; and
// every recipe and cache type against the CPU's runner.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>

#include "base/testing/test_data.h"
#include "compress/testing/random_weights.h"
#include "infer/plan_runner.h"
#include "infer/testing/serving_test_driver.h"

namespace octet {
namespace {

using serving_test::Driver;
using serving_test::kPrompt;
using serving_test::Text;

ServingOptions options_of(const Target& target, const char* recipe, DType cache) {
  return {
      .engine = {.context = 64, .max_sequences = 4, .max_step_tokens = 32, .block_size = 16, .kv_cache_bytes = 1 << 22},
      .target = target,
      .recipe = parse_recipe(recipe),
      .cache_dtype = cache};
}

class ServingOnGpu : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda_available(&why)) GTEST_SKIP() << why;
    folder_ = test_data_path(std::string("hf_goldens/") + GetParam());
    if (folder_.empty()) GTEST_SKIP() << missing_test_data(GetParam());
    weights_ = open_weights(folder_);
    wanted_ = serving_test::greedy_ids(folder_);
  }
  Text prompt(size_t tokens, int32_t row, int32_t first_block) const {
    return {{wanted_.begin(), wanted_.begin() + static_cast<ptrdiff_t>(tokens)}, row, first_block};
  }

  std::string folder_;
  std::unique_ptr<WeightSource> weights_;
  std::vector<int32_t> wanted_;
};

TEST_P(ServingOnGpu, GreedyTextsInMixedBatches) {
  auto runner = make_runner(*weights_, options_of(cuda_target(), "fp32", DType::kF32));
  Text a = prompt(kPrompt, 2, 4), b = prompt(kPrompt + 6, 1, 0);
  Driver driver(*runner);
  driver.add(a, kPrompt, true);
  a.tokens.push_back(driver.run().ids[0]);
  for (int64_t chunk : {5, 7, 5}) {
    const bool last = chunk == 5 && b.computed > 0;
    driver.add(a, 1, true, /*on_device=*/true);
    driver.add(b, chunk, last);
    SampleOutput output = driver.run();
    a.tokens.push_back(output.ids[0]);
    if (last) b.tokens.push_back(output.ids[1]);
  }
  while (a.tokens.size() < wanted_.size() && b.tokens.size() < wanted_.size()) {
    driver.add(b, 1, true, /*on_device=*/true);
    driver.add(a, 1, true);
    SampleOutput output = driver.run();
    b.tokens.push_back(output.ids[0]);
    a.tokens.push_back(output.ids[1]);
  }
  serving_test::decode(*runner, a, wanted_.size(), /*on_device=*/true);
  EXPECT_EQ(a.tokens, wanted_);
  EXPECT_EQ(b.tokens, wanted_);
}

TEST_P(ServingOnGpu, CopiedBlocksAndMaskedTokens) {
  auto runner = make_runner(*weights_, options_of(cuda_target(), "fp32", DType::kF32));
  Text text = prompt(kPrompt, 0, 0);
  Driver driver(*runner);
  driver.add(text, kPrompt, true);
  driver.sampling().masks.assign(static_cast<size_t>((runner->limits().vocab + 31) / 32), ~0u);
  driver.sampling().masks[static_cast<size_t>(wanted_[kPrompt] / 32)] &= ~(1u << (wanted_[kPrompt] % 32));
  driver.sampling().mask_rows = {0};
  EXPECT_NE(driver.run().ids[0], wanted_[kPrompt]);
  text.tokens.push_back(wanted_[kPrompt]);
  const BlockCopy copy{0, 0, 7};
  runner->copy_blocks({&copy, 1});
  text.first_block = 7;
  for (int i = 0; i < 3; ++i) {  // within the copied block
    driver.add(text, 1, true);
    text.tokens.push_back(driver.run().ids[0]);
  }
  EXPECT_TRUE(std::equal(text.tokens.begin(), text.tokens.end(), wanted_.begin()));
}

// Log-probabilities of the likeliest tokens after the prompt and after one more token.
std::vector<double> logprobs(Runner& runner, Text text) {
  std::vector<double> result;
  Driver driver(runner);
  for (int i = 0; i < 2; ++i) {
    driver.add(text, static_cast<int64_t>(text.tokens.size()) - text.computed, true);
    driver.sampling().top_logprobs = true;
    SampleOutput output = driver.run();
    result.push_back(output.top_logprobs[0]);
    result.push_back(output.top_logprobs[4]);
    text.tokens.push_back(1);
  }
  return result;
}

// bf16: activations rounded after sums in another order. FP8: a sum that is off by one bf16 step may round to the
// adjacent code, so two devices are two samples of the recipe's rounding noise: within sqrt(2) of the CPU's distance
// from float32 (docs/numerics.md).
void expect_near(const std::vector<double>& got, const std::vector<double>& want, const std::vector<double>& exact,
                 const Recipe& recipe) {
  double bound = 0.05;
  if (recipe.scaling != Scaling::kNone && is_code(recipe.forward_format)) {
    double noise = 0;
    for (size_t i = 0; i < want.size(); ++i) noise = std::max(noise, std::abs(want[i] - exact[i]));
    bound = std::sqrt(2.0) * noise;
  }
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], bound);
}

TEST_P(ServingOnGpu, RecipesAndCachesAgreeWithTheCpu) {
  struct Case {
    const char* recipe;
    DType cache;
  };
  const Text text = prompt(kPrompt, 0, 0);
  const std::vector<double> exact =
      logprobs(*make_runner(*weights_, options_of(cpu_target(), "fp32", DType::kF32)), text);
  for (const Case& c : {Case{"bf16", DType::kBF16}, Case{"fp8-current", DType::kBF16}, Case{"bf16", DType::kE4M3},
                        Case{"bf16", DType::kI8}}) {
    auto gpu = make_runner(*weights_, options_of(cuda_target(), c.recipe, c.cache));
    auto cpu = make_runner(*weights_, options_of(cpu_target(), c.recipe, c.cache));
    SCOPED_TRACE(fmt::format("{} cache {}", c.recipe, dtype_name(c.cache)));
    expect_near(logprobs(*gpu, text), logprobs(*cpu, text), exact, parse_recipe(c.recipe));
  }
}

// How far log-probabilities of ten texts are from float32's: the root of the mean square. Where codes are rounded two
// devices are two samples of the noise, whose farthest value is left to chance.
class Distance {
 public:
  explicit Distance(const WeightSource& weights)
      : weights_(weights), exact_(of_texts(cpu_target(), "fp32", DType::kF32)) {}

  double of(const Target& target, const char* recipe) const {
    const std::vector<double> got = of_texts(target, recipe, DType::kBF16);
    double sum = 0;
    for (size_t i = 0; i < got.size(); ++i) sum += (got[i] - exact_[i]) * (got[i] - exact_[i]);
    return std::sqrt(sum / static_cast<double>(got.size()));
  }

 private:
  std::vector<double> of_texts(const Target& target, const char* recipe, DType cache) const {
    auto runner = make_runner(weights_, options_of(target, recipe, cache));
    std::vector<double> all;
    for (int32_t seed = 0; seed < 10; ++seed) {
      Text text{{}, 0, 0};
      while (text.tokens.size() < kPrompt)
        text.tokens.push_back((7 + 31 * seed + 13 * static_cast<int32_t>(text.tokens.size())) % 320);
      const std::vector<double> some = logprobs(*runner, text);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  const WeightSource& weights_;
  std::vector<double> exact_;
};

TEST_P(ServingOnGpu, Int8IsAsFarFromFloat32AsOnTheCpu) {
  const Distance distance(*weights_);
  const double cpu = distance.of(cpu_target(), "int8"), gpu = distance.of(cuda_target(), "int8");
  EXPECT_LT(gpu, 1.5 * cpu);
  EXPECT_GT(gpu, cpu / 1.5);
}

// Weights of four bits by groups, with zero points and sorted columns; q, k and v, gate and up are one product each.
class PackedOnGpu : public testing::TestWithParam<const char*> {};

TEST_P(PackedOnGpu, AgreesWithTheCpu) {
  std::string why;
  if (!cuda_available(&why)) GTEST_SKIP() << why;
  const std::string folder = test_data_path(std::string("serving/packed/") + GetParam());
  if (folder.empty()) GTEST_SKIP() << missing_test_data(GetParam());
  const auto weights = open_weights(folder);
  const Distance distance(*weights);
  for (const char* recipe : {"w4a8", "w4a16"}) {
    const double cpu = distance.of(cpu_target(), recipe), gpu = distance.of(cuda_target(), recipe);
    EXPECT_LT(gpu, 1.5 * cpu) << recipe;
    EXPECT_GT(gpu, cpu / 1.5) << recipe;
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, PackedOnGpu,
                         testing::Values("awq_gemm", "ct_w4a16_asym_g64", "ct_w4a16_sym_g64", "gptq_desc_act_g64",
                                         "gptq_sym_g64", "reference_fp16"),
                         [](const auto& info) { return std::string(info.param); });

// Experts of four bits, wide enough for the order of their kernel.
TEST(ExpertsOnGpu, OfFourBitsAgreeWithTheCpu) {
  std::string why;
  if (!cuda_available(&why)) GTEST_SKIP() << why;
  ModelConfig model = small_model("mixtral");
  model.vocab_size = 320, model.max_positions = 64, model.hidden = 256, model.heads = 4, model.kv_heads = 2;
  const RandomWeights weights(model);
  const Distance distance(weights);
  for (const char* recipe : {"w4a8", "w4a16"}) {
    const double cpu = distance.of(cpu_target(), recipe), gpu = distance.of(cuda_target(), recipe);
    EXPECT_LT(gpu, 1.5 * cpu) << recipe;
    EXPECT_GT(gpu, cpu / 1.5) << recipe;
  }
}

// Rope and cache appends of a layer fused or unfused: the same bits.
TEST_P(ServingOnGpu, FusedAppendsChangeNoBit) {
  for (DType cache : {DType::kBF16, DType::kE4M3, DType::kI8}) {
    Target unfused = cuda_target();
    unfused.fusions[static_cast<size_t>(Producer::kScatterRows)] = 0;
    const CudaOptions cuda{.deterministic = true};  // else products may be timed, and chosen, twice
    auto one = make_runner(*weights_, options_of(cuda_target(), "bf16", cache), cuda);
    auto other = make_runner(*weights_, options_of(unfused, "bf16", cache), cuda);
    EXPECT_EQ(logprobs(*one, prompt(kPrompt, 0, 0)), logprobs(*other, prompt(kPrompt, 0, 0))) << dtype_name(cache);
  }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, ServingOnGpu,
                         testing::Values("gpt2", "llama_gqa_rope3", "mistral_swa", "gptj", "mixtral_moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace octet
