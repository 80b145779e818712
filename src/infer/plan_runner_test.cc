// The runner without an engine: fixed blocks, golden models, known greedy outputs.
#include "infer/plan_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/testing/test_data.h"
#include "eval/verify.h"
#include "infer/testing/serving_test_driver.h"

namespace octet {
namespace {

using serving_test::Driver;
using serving_test::kPrompt;
using serving_test::Text;

ServingOptions small_options() {
  return {
      .engine = {.context = 64, .max_sequences = 4, .max_step_tokens = 32, .block_size = 4, .kv_cache_bytes = 1 << 20},
      .target = cpu_target(),
      .recipe = parse_recipe("fp32")};
}

class PlanRunnerGoldens : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string folder = test_data_path(std::string("hf_goldens/") + GetParam());
    if (folder.empty()) GTEST_SKIP() << missing_test_data(GetParam());
    weights_ = open_weights(folder);
    wanted_ = serving_test::greedy_ids(folder);
    runner_ = make_runner(*weights_, small_options());
  }
  Text prompt(size_t tokens, int32_t row, int32_t first_block) const {
    return {{wanted_.begin(), wanted_.begin() + static_cast<ptrdiff_t>(tokens)}, row, first_block};
  }
  void decode(Text& text) { serving_test::decode(*runner_, text, wanted_.size()); }

  std::unique_ptr<WeightSource> weights_;
  std::vector<int32_t> wanted_;
  std::unique_ptr<PlanRunner> runner_;
};

TEST_P(PlanRunnerGoldens, ChunkedPrefillThenDecodingGivesTheGreedyText) {
  Text text = prompt(kPrompt, 0, 0);
  Driver driver(*runner_);
  for (int64_t chunk : {4, 4}) {
    driver.add(text, chunk, false);
    EXPECT_TRUE(driver.run().ids.empty());
  }
  driver.add(text, 3, true);
  text.tokens.push_back(driver.run().ids[0]);
  decode(text);
  EXPECT_EQ(text.tokens, wanted_);
}

// Chunks of a prompt, the whole of it, and one token after another give the same text. Its first tokens are those of
// the float32 cache; these models' weights are random, so that their likeliest tokens are at times as close as int8's
// error.
TEST_P(PlanRunnerGoldens, ACacheOfInt8GivesOneTextHoweverThePromptIsCut) {
  ServingOptions options = small_options();
  options.cache_dtype = DType::kI8;
  runner_ = make_runner(*weights_, options);
  Text chunked = prompt(kPrompt, 0, 0), whole = prompt(kPrompt, 1, 11), single = prompt(kPrompt, 2, 22);
  Driver driver(*runner_);
  for (int64_t chunk : {4, 4}) {
    driver.add(chunked, chunk, false);
    driver.run();
  }
  driver.add(chunked, 3, true);
  chunked.tokens.push_back(driver.run().ids[0]);
  driver.add(whole, kPrompt, true);
  whole.tokens.push_back(driver.run().ids[0]);
  for (size_t i = 0; i < kPrompt; ++i) {
    driver.add(single, 1, i + 1 == kPrompt);
    const SampleOutput output = driver.run();
    if (i + 1 == kPrompt) single.tokens.push_back(output.ids[0]);
  }
  for (Text* text : {&chunked, &whole, &single}) decode(*text);
  EXPECT_EQ(chunked.tokens, whole.tokens);
  EXPECT_EQ(single.tokens, whole.tokens);
  const auto differs = std::ranges::mismatch(whole.tokens, wanted_).in1 - whole.tokens.begin();
  EXPECT_GE(differs, static_cast<ptrdiff_t>(kPrompt + 4));
}

// Rows of two texts, not the last ones alone and in no order, after a prefix in the cache.
TEST_P(PlanRunnerGoldens, TheLastLayerOfThePromptsRowsThatAreReadGivesTheirLogits) {
  ServingOptions options = small_options();
  options.engine.all_rows = true;
  auto all_rows = make_runner(*weights_, options);
  std::vector<std::vector<float>> logprobs;
  std::vector<std::vector<int32_t>> ids;
  for (PlanRunner* runner : {runner_.get(), all_rows.get()}) {
    Text a = prompt(kPrompt, 2, 16), b = prompt(kPrompt + 6, 1, 0);
    Driver driver(*runner);
    driver.add(b, 5, false);
    driver.run();
    driver.add(a, kPrompt, true);
    driver.add(b, 8, false);
    for (int32_t token : {13, 4, 12}) driver.add_row(token);
    const SampleOutput output = driver.run();
    ids.emplace_back(output.ids.begin(), output.ids.end());
    logprobs.emplace_back(output.logprobs.begin(), output.logprobs.end());
  }
  EXPECT_EQ(ids[0], ids[1]);
  ASSERT_EQ(logprobs[0].size(), 4u);
  for (size_t r = 0; r < 4; ++r) EXPECT_NEAR(logprobs[0][r], logprobs[1][r], 1e-5) << "row " << r;
}

TEST_P(PlanRunnerGoldens, MixedBatchesOfInterleavedTexts) {
  Text a = prompt(kPrompt, 2, 16), b = prompt(kPrompt + 6, 1, 0);
  Driver driver(*runner_);
  driver.add(a, kPrompt, true);
  a.tokens.push_back(driver.run().ids[0]);
  for (int64_t chunk : {5, 7, 5}) {  // b's prompt beside a's decoding, now before and now after it
    const bool last = chunk == 5 && b.computed > 0;
    driver.add(a, 1, true);
    driver.add(b, chunk, last);
    SampleOutput output = driver.run();
    a.tokens.push_back(output.ids[0]);
    if (last) b.tokens.push_back(output.ids[1]);
  }
  while (b.tokens.size() < wanted_.size()) {
    driver.add(b, 1, true);
    if (a.tokens.size() < wanted_.size()) driver.add(a, 1, true);
    const size_t sampled = driver.sampling().top_k.size();
    SampleOutput output = driver.run();
    b.tokens.push_back(output.ids[0]);
    if (sampled == 2) a.tokens.push_back(output.ids[1]);
  }
  decode(a);
  EXPECT_EQ(a.tokens, wanted_);
  EXPECT_EQ(b.tokens, wanted_);
}

TEST_P(PlanRunnerGoldens, PreemptedTextsAreRecomputedInOtherBlocks) {
  Text text = prompt(kPrompt, 0, 0);
  Driver driver(*runner_);
  driver.add(text, kPrompt, true);
  text.tokens.push_back(driver.run().ids[0]);
  for (int i = 0; i < 9; ++i) {
    driver.add(text, 1, true);
    text.tokens.push_back(driver.run().ids[0]);
  }
  Text again{text.tokens, 3, 20};
  driver.add(again, static_cast<int64_t>(again.tokens.size()), true);
  again.tokens.push_back(driver.run().ids[0]);
  decode(again);
  EXPECT_EQ(again.tokens, wanted_);
}

TEST_P(PlanRunnerGoldens, IdsFedOnTheDeviceEqualThoseFedByTheHost) {
  Text text = prompt(kPrompt, 3, 7);
  Driver driver(*runner_);
  driver.add(text, kPrompt, true);
  text.tokens.push_back(driver.run().ids[0]);
  serving_test::decode(*runner_, text, wanted_.size(), /*on_device=*/true);
  EXPECT_EQ(text.tokens, wanted_);
}

TEST_P(PlanRunnerGoldens, LogprobsAreThoseOfTheDecoder) {
  IncrementalModel decoder(weights_->config(), {.recipe = parse_recipe("fp32"), .target = cpu_target()});
  load_weights(*weights_, decoder.executor());
  Text text = prompt(kPrompt, 0, 0);
  std::span<const float> logits = decoder.append(text.tokens);
  Driver driver(*runner_);
  for (int i = 0; i < 5; ++i) {
    driver.add(text, static_cast<int64_t>(text.tokens.size()) - text.computed, true);
    driver.sampling().top_logprobs = true;
    SampleOutput output = driver.run();
    double sum = 0;
    for (float logit : logits) sum += std::exp(static_cast<double>(logit));
    ASSERT_EQ(static_cast<int64_t>(output.top_ids.size()), kTopLogprobs);
    EXPECT_EQ(output.top_ids[0], output.ids[0]);
    EXPECT_EQ(output.top_logprobs[0], output.logprobs[0]);
    for (size_t k = 0; k < output.top_ids.size(); ++k) {  // float32 sums in another order
      const double wanted = static_cast<double>(logits[static_cast<size_t>(output.top_ids[k])]) - std::log(sum);
      EXPECT_NEAR(output.top_logprobs[k], wanted, 1e-5);
    }
    text.tokens.push_back(output.ids[0]);
    logits = decoder.append({&text.tokens.back(), 1});
  }
}

TEST_P(PlanRunnerGoldens, NeitherPaddingNorNeighboursChangeALogprob) {
  Text alone = prompt(kPrompt, 0, 0), beside = prompt(kPrompt, 1, 20), other = prompt(5, 2, 32);
  Driver driver(*runner_);
  driver.add(alone, kPrompt, true);
  const float expected = driver.run().logprobs[0];
  driver.add(beside, kPrompt, true);
  driver.add(other, 4, false);
  EXPECT_EQ(driver.step().tokens(), 15);
  EXPECT_EQ(runner_->padded_tokens(driver.step()), 16);
  EXPECT_EQ(driver.run().logprobs[0], expected);
}

// The appends of a layer are one in-place node, whatever the final number of blocks.
TEST_P(PlanRunnerGoldens, FusedAppendsGiveTheGreedyText) {
  ServingOptions options = small_options();
  options.target.allow(Producer::kScatterRows, {FusionPart::kCore, FusionPart::kRope});
  runner_ = make_runner(*weights_, options);
  Text text = prompt(kPrompt, 1, 3);
  Driver driver(*runner_);
  driver.add(text, kPrompt - 2, false);
  driver.run();
  driver.add(text, 2, true);
  text.tokens.push_back(driver.run().ids[0]);
  decode(text);
  EXPECT_EQ(text.tokens, wanted_);
}

// Fusions that slice a merged product themselves, where the models have them.
TEST_P(PlanRunnerGoldens, PartsReadInPlaceChangeNoBit) {
  const auto logprobs = [&](bool columns) {
    ServingOptions options = small_options();
    options.recipe = parse_recipe("fp8-current");
    using enum FusionPart;
    options.target.allow(Producer::kScatterRows, {kCore, kRope});
    options.target.allow(Producer::kGated, {kCore, kQuantize});
    options.target.allow(Producer::kProduct, {kSiblings, kSlices});
    for (Producer reader : {Producer::kScatterRows, Producer::kGated})
      if (columns) options.target.allow(reader, {kColumns});
    runner_ = make_runner(*weights_, options);
    Text text = prompt(kPrompt, 1, 3);
    Driver driver(*runner_);
    std::vector<float> list;
    driver.add(text, kPrompt, true);
    for (int n = 0; n < 3; ++n) {
      if (n > 0) driver.add(text, 1, true);
      const SampleOutput output = driver.run();
      list.push_back(output.logprobs[0]);
      text.tokens.push_back(output.ids[0]);
    }
    return list;
  };
  EXPECT_EQ(logprobs(true), logprobs(false));
}

TEST_P(PlanRunnerGoldens, CopiedBlocksContinueTheText) {
  Text text = prompt(kPrompt, 0, 0);
  Driver driver(*runner_);
  driver.add(text, kPrompt, true);
  text.tokens.push_back(driver.run().ids[0]);
  Text copy = text;
  copy.first_block = 20;
  const BlockCopy copies[] = {{0, 0, 20}, {0, 1, 21}, {0, 2, 22}};
  runner_->copy_blocks(copies);
  decode(copy);
  EXPECT_EQ(copy.tokens, wanted_);
}

TEST_P(PlanRunnerGoldens, BiasesAndMasksForbidTokens) {
  const auto words = static_cast<size_t>((runner_->limits().vocab + 31) / 32);
  auto first = [&](const std::vector<int32_t>& banned, bool by_mask) {
    Text text = prompt(kPrompt, 0, 0);
    Driver driver(*runner_);
    driver.add(text, kPrompt, true);
    SampleInput& sampling = driver.sampling();
    if (by_mask) {
      sampling.masks.assign(words, ~0u);
      sampling.mask_rows = {0};
    }
    for (int32_t token : banned) {
      if (by_mask) {
        sampling.masks[static_cast<size_t>(token / 32)] &= ~(1u << (token % 32));
      } else {
        sampling.entries.insert(sampling.entries.end(), {0, token});
        sampling.values.insert(sampling.values.end(), {-INFINITY, 1, 0});
      }
    }
    SampleOutput output = driver.run();
    return std::pair{output.ids[0], output.logprobs[0]};
  };
  const auto best = first({}, false);
  EXPECT_EQ(best.first, wanted_[kPrompt]);
  const auto second = first({best.first}, false);
  EXPECT_NE(second.first, best.first);
  EXPECT_LT(second.second, best.second);
  EXPECT_EQ(first({best.first}, true), second);
  EXPECT_NE(first({best.first, second.first}, true).first, second.first);
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, PlanRunnerGoldens,
                         testing::Values("gpt2", "llama_gqa_rope3", "bloom", "mistral_swa", "gptj", "qwen3",
                                         "mixtral_moe"),
                         [](const auto& info) { return std::string(info.param); });

ModelConfig tiny_model() {
  ModelConfig config = model_family("llama");
  config.vocab_size = 96;
  config.max_positions = 64;
  config.hidden = 64;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.intermediate = 128;
  return config;
}

TEST(PlanRunner, EveryRecipeServes) {
  for (const char* recipe : {"bf16", "fp8-current", "fp8-block", "int8", "w4i8", "w4a8", "w4a16"}) {
    ServingOptions options = small_options();
    options.recipe = parse_recipe(recipe);
    options.cache_dtype = DType::kBF16;
    auto runner = make_random_runner(tiny_model(), options);
    Driver driver(*runner);
    Text text{{1, 2, 3, 4, 5}};
    driver.add(text, 5, true);
    SampleOutput output = driver.run();
    EXPECT_GE(output.ids[0], 0) << recipe;
    EXPECT_TRUE(std::isfinite(output.logprobs[0])) << recipe;
  }
}

TEST(PlanRunner, RefusesStepsThatDoNotFit) {
  auto runner = make_random_runner(tiny_model(), small_options());
  Driver driver(*runner);
  Text text{std::vector<int32_t>(40, 1)};
  driver.add(text, 33, true);
  EXPECT_THROW(driver.run(), Error);
  Text strange{{96}};
  Driver other(*runner);
  other.add(strange, 1, true);
  EXPECT_THROW(other.run(), Error);
}

}  // namespace
}  // namespace octet
