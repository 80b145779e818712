#include "infer/draft_length.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace octet {
namespace {

TEST(Acceptance, FollowsOutcomesAndForgets) {
  Acceptance text;
  EXPECT_NEAR(text.rate(), 0.8, 1e-9);
  for (int i = 0; i < 30; ++i) text.verified(4, 0);
  EXPECT_LT(text.rate(), 0.2);
  for (int i = 0; i < 30; ++i) text.verified(4, 4);
  EXPECT_GT(text.rate(), 0.93);
  for (int i = 0; i < 30; ++i) text.verified(4, 0);
  for (int i = 0; i < 300; ++i) text.undrafted();
  EXPECT_NEAR(text.rate(), 0.8, 0.01);
  // Drafts of chance 0.6 each: those behind the first wrong one say nothing.
  Philox random(5);
  double sum = 0;
  for (int i = 0; i < 4000; ++i) {
    int64_t right = 0;
    while (right < 4 && random.below(10) < 6) ++right;
    text.verified(4, right);
    if (i >= 1000) sum += text.rate() / 3000;
  }
  EXPECT_NEAR(sum, 0.6, 0.03);  // drawn a little to 0.8
}

// Sequences that are alike get rates that are, however short they are; what a new one does is its own.
TEST(Acceptance, FollowsAllTexts) {
  Philox random(3);
  Acceptance all(0.995);
  std::vector<Acceptance> texts(200);
  for (int i = 0; i < 20; ++i)
    for (Acceptance& text : texts) {
      int64_t right = 0;
      while (right < 2 && random.below(10) < 6) ++right;
      text.verified(2, right), all.verified(2, right);
    }
  EXPECT_NEAR(all.rate(), 0.6, 0.05);
  double alone = 0, together = 0;
  for (const Acceptance& text : texts)
    alone += std::pow(text.rate() - 0.6, 2), together += std::pow(text.rate(all) - 0.6, 2);
  EXPECT_LT(together, 0.6 * alone);
  EXPECT_NEAR(Acceptance().rate(all), 0.8, 1e-9);
}

TEST(StepCosts, InterpolatesBetweenMeasuredSizes) {
  StepCosts costs;
  EXPECT_FALSE(costs.known());
  costs.observe(1, 0.010);
  EXPECT_DOUBLE_EQ(costs.seconds(64), 0.010);
  costs.observe(9, 0.018);
  EXPECT_NEAR(costs.seconds(5), 0.014, 1e-9);
  EXPECT_DOUBLE_EQ(costs.seconds(100), 0.018);
  for (int i = 0; i < 50; ++i) costs.observe(9, 1e9);  // each counts as three times the mean
  EXPECT_LT(costs.seconds(9), 0.018 * 1e5);
  StepCosts large;
  for (int64_t tokens = 1; tokens < 100'000; tokens = tokens * 3 / 2 + 1)
    large.observe(tokens, 1 + 0.001 * static_cast<double>(tokens));
  for (int64_t tokens = 1; tokens < 60'000; tokens += 97)
    EXPECT_NEAR(large.seconds(tokens) / (1 + 0.001 * static_cast<double>(tokens)), 1, 0.02) << tokens;
}

int64_t chosen(double acceptance, int64_t texts, double base, double each, double draft_seconds = 0) {
  StepCosts plain, drafted;
  for (int64_t tokens = 1; tokens <= 4096; tokens *= 2) {
    plain.observe(tokens, base + each * static_cast<double>(tokens));
    drafted.observe(tokens, base + each * static_cast<double>(tokens));
  }
  std::vector<DraftChoice> choices(static_cast<size_t>(texts), {.acceptance = acceptance, .available = 8});
  choose_drafts(choices, {.tokens = texts, .room = 8 * texts, .draft_seconds = draft_seconds}, plain, drafted);
  int64_t sum = 0;
  for (const DraftChoice& choice : choices) sum += choice.chosen;
  return sum;
}

TEST(ChooseDrafts, AsManyAsPay) {
  EXPECT_EQ(chosen(0.9, 1, 1, 0), 8) << "free tokens";
  EXPECT_EQ(chosen(0.5, 1, 0, 1), 0) << "a step that costs by the token";
  const int64_t some = chosen(0.8, 1, 1, 0.1);
  EXPECT_GT(some, 2);
  EXPECT_LT(some, 8);
  EXPECT_LT(chosen(0.4, 1, 1, 0.1), some);
  EXPECT_LT(chosen(0.8, 1, 1, 0.1, /*draft_seconds=*/0.3), some);
  EXPECT_EQ(chosen(0.8, 1, 1, 0.1, /*draft_seconds=*/1), 0);
  EXPECT_GT(chosen(0.8, 4, 1, 0.02), 4 * 2);
  EXPECT_LT(chosen(0.8, 512, 1, 0.02), 100) << "load";
}

// 128 sequences with 4 drafts each were tried and did not pay: fewer are tried next, not none.
TEST(ChooseDrafts, FewerThanWereMeasuredAreTried) {
  StepCosts plain, drafted;
  plain.observe(128, 4.6);
  drafted.observe(64, 4.4);
  drafted.observe(640, 16);
  std::vector<DraftChoice> texts(128, {.acceptance = 0.8, .available = 4});
  choose_drafts(texts, {.tokens = 128, .room = 512}, plain, drafted);
  for (const DraftChoice& text : texts) EXPECT_TRUE(text.chosen == 1 || text.chosen == 2) << text.chosen;
}

// What a step cannot verify is not chosen, and no size above the measured ones is taken for free.
TEST(ChooseDrafts, WithinTheRoomEveryTextsFirst) {
  StepCosts plain, drafted;
  plain.observe(128, 5);
  drafted.observe(256, 7.4);
  std::vector<DraftChoice> texts(128, {.acceptance = 0.8, .available = 4});
  choose_drafts(texts, {.tokens = 128, .room = 128}, plain, drafted);
  for (const DraftChoice& text : texts) EXPECT_EQ(text.chosen, 1);
  choose_drafts(texts, {.tokens = 128, .room = -3}, plain, drafted);
  for (const DraftChoice& text : texts) EXPECT_EQ(text.chosen, 0);
  StepCosts slow;
  slow.observe(256, 8.7);  // (128 + 102) / 8.7 is 3 % more than 128 / 5
  choose_drafts(texts, {.tokens = 128, .room = 128}, plain, slow);
  for (const DraftChoice& text : texts) EXPECT_EQ(text.chosen, 0);
}

TEST(ChooseDrafts, TheLikelyFirstAndNoneBeforeAPlainStepIsMeasured) {
  StepCosts plain, drafted;
  std::vector<DraftChoice> texts = {{.acceptance = 0.9, .available = 4}, {.acceptance = 0.1, .available = 4}};
  choose_drafts(texts, {.tokens = 2, .room = 8}, plain, drafted);
  EXPECT_EQ(texts[0].chosen + texts[1].chosen, 0);
  for (StepCosts* costs : {&plain, &drafted})
    for (int64_t tokens = 1; tokens <= 16; tokens *= 2) costs->observe(tokens, 1 + 0.15 * static_cast<double>(tokens));
  choose_drafts(texts, {.tokens = 2, .room = 8}, plain, drafted);
  EXPECT_GE(texts[0].chosen, 3);
  EXPECT_EQ(texts[1].chosen, 0);
}

}  // namespace
}  // namespace octet
