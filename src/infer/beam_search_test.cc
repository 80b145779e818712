// The search alone: against transformers' generate() over a model that is a formula, and where tokens are forbidden.
#include "infer/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/testing/test_data.h"

namespace octet {
namespace {

constexpr int64_t kVocab = 29;

// The formula of tests/models/make_beam_cases.py. The `most` likeliest tokens.
std::vector<TokenLogprob> next_of(int64_t last, int64_t p, size_t most) {
  std::vector<double> logits;
  for (int64_t v = 0; v < kVocab; ++v) {
    const int64_t h = last * 7919 + p * 104729 + v * 12553 + (last + 3) * (v + 5) * (p + 7) * 641;
    logits.push_back(static_cast<double>(h % 100003) / 12500);
  }
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  std::vector<TokenLogprob> next;
  for (const double logit : logits)
    next.push_back({static_cast<int32_t>(next.size()), static_cast<float>(logit - std::log(sum))});
  std::ranges::sort(next, std::greater<>(), &TokenLogprob::logprob);
  next.resize(std::min(next.size(), most));
  return next;
}

std::vector<BeamSearch::Text> search(const BeamOptions& options, const std::vector<int32_t>& prompt) {
  BeamSearch search(options);
  std::vector<std::vector<int32_t>> beams(static_cast<size_t>(options.width), prompt);
  for (;;) {
    std::vector<BeamSearch::Row> rows;
    for (const auto& beam : beams)
      rows.push_back({next_of(beam.back(), std::ssize(beam) - 1, beams.size() + options.end_ids.size())});
    const auto steps = search.advance(rows);
    if (steps.empty()) return search.texts();
    const auto before = beams;
    for (size_t i = 0; i < steps.size(); ++i) {
      beams[i] = before[static_cast<size_t>(steps[i].parent)];
      beams[i].push_back(steps[i].token);
    }
  }
}

EarlyStopping early_stopping(const nlohmann::json& value) {
  if (value == "never") return EarlyStopping::kNever;
  return value.get<bool>() ? EarlyStopping::kYes : EarlyStopping::kNo;
}

TEST(BeamSearch, EqualsTransformers) {
  const std::string path = source_dir() + "/src/infer/testdata/beam_cases.json";
  const nlohmann::json cases = nlohmann::json::parse(read_file(path));
  ASSERT_EQ(cases.size(), 72u);
  for (const nlohmann::json& one : cases) {
    SCOPED_TRACE(one.dump());
    const auto texts = search({.width = one["beams"],
                               .length_penalty = one["length_penalty"],
                               .early_stopping = early_stopping(one["early_stopping"]),
                               .limit = one["max_tokens"],
                               .end_ids = one["ends"]},
                              one["prompt"]);
    ASSERT_EQ(texts.size(), one["texts"].size());
    for (size_t i = 0; i < texts.size(); ++i) {
      std::vector<int32_t> ids;
      for (const TokenLogprob& token : texts[i].tokens) ids.push_back(token.id);
      if (texts[i].stop_id >= 0) ids.push_back(texts[i].stop_id);
      EXPECT_EQ(nlohmann::json(ids), one["texts"][i]) << i;
      // float32 sums of up to 20 log-probabilities there; scores of length_penalty -1 are 20 times the sums
      EXPECT_NEAR(texts[i].score, one["scores"][i].get<double>(), 2e-5 + 1e-6 * std::fabs(texts[i].score)) << i;
    }
  }
}

const std::vector<TokenLogprob> kNone = {};

TEST(BeamSearch, BeamsThatNothingMayFollowAreReplaced) {
  BeamSearch search({.width = 3, .limit = 4, .end_ids = {9}});
  const float forbidden = -INFINITY;
  // One token may follow the prompt: two beams are copies that do not count.
  auto steps = search.advance(std::vector<BeamSearch::Row>(3, {{{1, -0.5f}, {2, forbidden}, {3, NAN}}}));
  ASSERT_EQ(steps.size(), 3u);
  for (const auto& step : steps) EXPECT_EQ(step.token, 1);
  steps = search.advance(std::vector<BeamSearch::Row>(3, {{{4, -1.0f}, {5, -2.0f}, {6, forbidden}}}));
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].parent, 0);
  EXPECT_EQ(steps[0].token, 4);
  EXPECT_EQ(steps[1].token, 5);
  EXPECT_EQ(steps[1].parent, 0);
  // The first beam ends; the second has no next token: the search is over with one sequence.
  steps = search.advance(std::vector<BeamSearch::Row>{{{{9, -0.25f}}}, {kNone}, {{{7, -0.1f}}}});
  EXPECT_TRUE(steps.empty());
  const auto texts = search.texts();
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0].stop_id, 9);
  EXPECT_EQ(texts[0].tokens.size(), 2u);
  EXPECT_NEAR(texts[0].score, -1.75 / 3, 1e-6);
}

TEST(BeamSearch, ASearchThatNothingMayBeginHasNoText) {
  BeamSearch search({.width = 2, .limit = 4});
  EXPECT_TRUE(search.advance(std::vector<BeamSearch::Row>(2)).empty());
  EXPECT_TRUE(search.texts().empty());
}

TEST(BeamSearch, ABeamsFirstChildStaysInItsPlace) {
  BeamSearch search({.width = 3, .limit = 9});
  search.advance(std::vector<BeamSearch::Row>(3, {{{1, -1.0f}, {2, -1.1f}, {3, -1.2f}}}));
  // The third beam has the two best tokens, the second the third best.
  const auto steps = search.advance(
      std::vector<BeamSearch::Row>{{{{4, -9.0f}}}, {{{5, -2.0f}, {6, -3.0f}}}, {{{7, -0.1f}, {8, -0.2f}}}});
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[2].parent, 2);
  EXPECT_EQ(steps[2].token, 7);
  EXPECT_EQ(steps[1].parent, 1);
  EXPECT_EQ(steps[1].token, 5);
  EXPECT_EQ(steps[0].parent, 2);
  EXPECT_EQ(steps[0].token, 8);
}

TEST(BeamSearch, TheLikeliestTokensOfEachPlaceAreKept) {
  BeamSearch search({.width = 1, .limit = 1});
  search.advance(std::vector<BeamSearch::Row>{{{{1, -1.0f}}, {{1, -1.0f}, {2, -1.5f}}}});
  ASSERT_EQ(search.texts().size(), 1u);
  EXPECT_EQ(search.texts()[0].top.at(0).size(), 2u);
}

}  // namespace
}  // namespace octet
