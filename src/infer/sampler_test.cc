#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"
#include "infer/testing/sample_token.h"

namespace octet {
namespace {

std::map<int32_t, int> draw(const std::vector<float>& logits, const SamplingOptions& options, int count) {
  std::map<int32_t, int> seen;
  for (int i = 0; i < count; ++i) ++seen[sample_token(logits, options, 7, i)];
  return seen;
}

// What a draft that was wrong added is gone, entry by entry.
TEST(TokenCounts, OutputsCanBeTakenBack) {
  const SamplingOptions options{
      .repetition_penalty = 1.5, .frequency_penalty = 0.5, .logit_bias = {{3, 0.0f}, {4, 1.0f}}};
  const auto entries = [](const TokenCounts& counts) {
    std::pair<std::vector<int32_t>, std::vector<float>> all;
    counts.append_entries(0, all.first, all.second);
    return all;
  };
  const std::vector<int32_t> ends = {9}, prompt = {1, 2, 1}, outputs = {7, 3, 2, 7, 4, 8, 9, 8};
  TokenCounts counts(options, 5, ends);
  counts.add_prompt(prompt);
  std::vector<decltype(entries(counts))> before;
  for (const int32_t id : outputs) {
    before.push_back(entries(counts));
    counts.add_output(id);
  }
  for (size_t i = outputs.size(); i > 0; --i) {
    EXPECT_NE(entries(counts), before[i - 1]);
    counts.remove_output(outputs[i - 1]);
    EXPECT_EQ(entries(counts), before[i - 1]) << i;
  }
}

TEST(Sampler, GreedyTakesTheLowestOfEqualMaxima) {
  const std::vector<float> logits = {1, 3, 3, 2};
  EXPECT_EQ(sample_token(logits, {.temperature = 0}, 0, 0), 1);
  // top_p 0 is greedy at any temperature, as in TensorRT-LLM and llama.cpp.
  EXPECT_EQ(draw(logits, {.temperature = 100, .top_p = 0, .seed = 3}, 50), (std::map<int32_t, int>{{1, 50}}));
}

// Pearson's statistic of 100,000 draws against the probabilities; tokens of probability 0 must not be sampled.
double chi_square(const SamplingOptions& options, const std::vector<double>& probabilities) {
  constexpr int kDraws = 100000;
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 1.0f, 0.5f, -3.0f};
  auto seen = draw(logits, options, kDraws);
  double statistic = 0;
  for (size_t token = 0; token < logits.size(); ++token) {
    const int count = seen[static_cast<int32_t>(token)];
    const double expected = kDraws * probabilities[token];
    if (expected == 0) {
      EXPECT_EQ(count, 0) << "token " << token;
    } else {
      statistic += (count - expected) * (count - expected) / expected;
    }
  }
  return statistic;
}

// e^(logit / T) of the kept tokens, over their sum.
std::vector<double> softmax(double temperature, const std::vector<int>& kept) {
  const std::vector<double> logits = {0.5, 2, -1, 1, 0.5, -3};
  std::vector<double> result(logits.size(), 0.0);
  double sum = 0;
  for (int token : kept) sum += std::exp(logits[static_cast<size_t>(token)] / temperature);
  for (int token : kept) {
    result[static_cast<size_t>(token)] = std::exp(logits[static_cast<size_t>(token)] / temperature) / sum;
  }
  return result;
}

// 20.5 is exceeded by chance once in 1000 draws at 5 degrees of freedom, more rarely at fewer; the seeds are fixed.
// Probabilities at T = 1: token 1 0.558, 3 0.205, 0 and 4 0.125 each, 2 0.028, 5 0.004.
TEST(Sampler, FollowsTheDistributionUnderEveryFilter) {
  EXPECT_LT(chi_square({.seed = 3}, softmax(1, {0, 1, 2, 3, 4, 5})), 20.5);
  EXPECT_LT(chi_square({.temperature = 0.6, .seed = 4}, softmax(0.6, {0, 1, 2, 3, 4, 5})), 20.5);
  EXPECT_LT(chi_square({.temperature = 3, .seed = 5}, softmax(3, {0, 1, 2, 3, 4, 5})), 20.5);
  EXPECT_LT(chi_square({.top_k = 3, .seed = 6}, softmax(1, {1, 3, 0})), 20.5) << "of two equal ones the lower id";
  EXPECT_LT(chi_square({.top_p = 0.7, .seed = 7}, softmax(1, {1, 3})), 20.5);
  EXPECT_LT(chi_square({.top_p = 0.9, .seed = 8}, softmax(1, {1, 3, 0, 4})), 20.5);
  EXPECT_LT(chi_square({.min_p = 0.3, .seed = 9}, softmax(1, {1, 3})), 20.5);
  EXPECT_LT(chi_square({.top_k = 4, .top_p = 0.95, .min_p = 0.2, .seed = 10}, softmax(1, {1, 3, 0, 4})), 20.5);
}

TEST(Sampler, DifferentSequencesDrawDifferentTokens) {
  const std::vector<float> logits(100, 0.0f);
  std::map<int32_t, int> seen;
  for (int sequence = 0; sequence < 50; ++sequence) ++seen[sample_token(logits, {.seed = 1}, sequence, 0)];
  EXPECT_GT(seen.size(), 30u);
}

TEST(Sampler, SameSeedSameTokens) {
  std::vector<float> logits(100);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  EXPECT_EQ(draw(logits, {.seed = 5}, 50), draw(logits, {.seed = 5}, 50));
  EXPECT_NE(draw(logits, {.seed = 5}, 50), draw(logits, {.seed = 6}, 50));
}

TEST(Sampler, SkipsNonFiniteAndRefusesWhenNoneIsLeft) {
  float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sample_token(std::vector<float>{nan, -inf, 1.0f}, {}, 0, 0), 2);
  try {
    sample_token(std::vector<float>{nan, nan}, {}, 0, 0);
    ADD_FAILURE() << "drawn from nothing";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.message();  // the model's fault, not Octet's
  }
}

TEST(Sampler, RefusesValuesOutsideTheirRanges) {
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = std::nan("")}, SamplingOptions{.top_k = -1},
        SamplingOptions{.top_p = -0.1}, SamplingOptions{.top_p = std::nan("")}, SamplingOptions{.top_p = 1.1},
        SamplingOptions{.min_p = -0.1}, SamplingOptions{.repetition_penalty = 0},
        SamplingOptions{.presence_penalty = 3}, SamplingOptions{.frequency_penalty = -3},
        SamplingOptions{.logit_bias = {{-1, 0.0f}}}, SamplingOptions{.logit_bias = {{10, 0.0f}}},
        SamplingOptions{.logit_bias = {{1, 1000.0f}}}}) {
    EXPECT_THROW(validate(options, 10), Error);
  }
  for (const SamplingOptions& edge :
       {SamplingOptions{.top_p = 0}, SamplingOptions{.top_p = 1}, SamplingOptions{.min_p = 1},
        SamplingOptions{.top_k = std::numeric_limits<int32_t>::max()}, SamplingOptions{.temperature = 100}})
    validate(edge, 10);
  validate(SamplingOptions{.logit_bias = {{9, -std::numeric_limits<float>::infinity()}}}, 10);
}

TEST(TokenCounts, EntriesFollowPromptOutputBiasAndStops) {
  SamplingOptions options{.repetition_penalty = 2, .presence_penalty = 0.5, .frequency_penalty = 0.25};
  options.logit_bias = {{7, 1.5f}};
  TokenCounts counts(options, 2, std::vector<int32_t>{9});
  counts.add_prompt(std::vector<int32_t>{3, 7, 3});
  counts.add_output(3);
  std::vector<int32_t> entries;
  std::vector<float> values;
  counts.append_entries(5, entries, values);
  const float forbidden = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(entries, (std::vector<int32_t>{5, 7, 5, 9, 5, 3}));
  EXPECT_EQ(values, (std::vector<float>{1.5f, 2, 0, forbidden, 1, 0, 0, 2, 0.75f}));
  EXPECT_EQ(counts.entries(), 3);

  std::vector<float> logits(10, 1.0f);
  logits[3] = -1;
  adjust(counts, logits);
  EXPECT_EQ(logits, (std::vector<float>{1, 1, 1, -2.75f, 1, 1, 1, 1.25f, 1, forbidden}));
  counts.add_output(3);
  logits.assign(10, 1.0f);
  adjust(counts, logits);
  EXPECT_EQ(logits[9], 1) << "two tokens were generated: the end is allowed";
  EXPECT_EQ(logits[3], -0.5f) << "1 / 2 - (0.5 + 2 x 0.25)";
}

TEST(TokenCounts, NothingIsAdjustedWithoutAReason) {
  TokenCounts counts(SamplingOptions{});
  counts.add_prompt(std::vector<int32_t>{1, 2});
  counts.add_output(1);
  EXPECT_FALSE(counts.adjusts());
  EXPECT_EQ(counts.outputs(), 1);
}

}  // namespace
}  // namespace octet
