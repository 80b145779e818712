#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"

namespace octet {
namespace {

std::map<int32_t, int> draw(const std::vector<float>& logits, const SamplingOptions& options, int count) {
  std::map<int32_t, int> seen;
  for (int i = 0; i < count; ++i) ++seen[sample_token(logits, options, 7, static_cast<uint64_t>(i))];
  return seen;
}

TEST(Sampler, GreedyTakesTheLowestOfEqualMaxima) {
  EXPECT_EQ(sample_token(std::vector<float>{1, 3, 3, 2}, {.temperature = 0}, 0, 0), 1);
}

TEST(Sampler, FollowsTheSoftmax) {
  std::vector<float> logits = {std::log(0.6f), std::log(0.3f), std::log(0.1f)};
  auto seen = draw(logits, {.seed = 3}, 20000);  // standard deviation of each share <= 0.0035
  EXPECT_NEAR(seen[0] / 20000.0, 0.6, 0.014);
  EXPECT_NEAR(seen[1] / 20000.0, 0.3, 0.014);
  EXPECT_NEAR(seen[2] / 20000.0, 0.1, 0.014);
}

TEST(Sampler, TopKAndTopPCut) {
  std::vector<float> logits = {std::log(0.1f), std::log(0.5f), std::log(0.3f), std::log(0.1f)};
  auto top_k = draw(logits, {.top_k = 2, .seed = 1}, 500);
  EXPECT_EQ(top_k.size(), 2u);
  EXPECT_TRUE(top_k.count(1) && top_k.count(2));
  auto top_p = draw(logits, {.top_p = 0.45, .seed = 1}, 500);
  EXPECT_EQ(top_p.size(), 1u);
  EXPECT_TRUE(top_p.count(1));
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
  EXPECT_THROW(sample_token(std::vector<float>{nan, nan}, {}, 0, 0), Error);
  EXPECT_THROW(validate(SamplingOptions{.temperature = -1}), Error);
  EXPECT_THROW(validate(SamplingOptions{.top_p = 0}), Error);
}

}  // namespace
}  // namespace octet
