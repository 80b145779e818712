// ROUGE as rouge-score counts it, and stems as NLTK's PorterStemmer makes them.
#include "eval/rouge.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "base/testing/test_data.h"
#include "eval/porter_stemmer.h"

namespace octet {
namespace {

TEST(Rouge, Stems) {
  const std::pair<const char*, const char*> cases[] = {{"agreed", "agre"},
                                                       {"feed", "feed"},
                                                       {"conflated", "conflat"},
                                                       {"troubled", "troubl"},
                                                       {"hopping", "hop"},
                                                       {"falling", "fall"},
                                                       {"fizzed", "fizz"},
                                                       {"filing", "file"},
                                                       {"happy", "happi"},
                                                       {"enjoy", "enjoy"},
                                                       {"relational", "relat"},
                                                       {"rational", "ration"},
                                                       {"radically", "radic"},
                                                       {"operator", "oper"},
                                                       {"hopefully", "hope"},
                                                       {"biology", "biolog"},
                                                       {"triplicate", "triplic"},
                                                       {"electriciti", "electr"},
                                                       {"airliner", "airlin"},
                                                       {"replacement", "replac"},
                                                       {"adoption", "adopt"},
                                                       {"communism", "commun"},
                                                       {"effective", "effect"},
                                                       {"probate", "probat"},
                                                       {"rate", "rate"},
                                                       {"cease", "ceas"},
                                                       {"controll", "control"},
                                                       {"roll", "roll"},
                                                       {"skies", "sky"},
                                                       {"innings", "inning"},
                                                       {"ties", "tie"},
                                                       {"tied", "tie"},
                                                       {"vietnamization", "vietnam"},
                                                       {"sensibiliti", "sensibl"},
                                                       {"a1b2ing", "a1b2"},
                                                       {"ing", "ing"},
                                                       {"s", "s"}};
  for (const auto& [word, stem] : cases) EXPECT_EQ(porter_stem(word), stem);
}

void expect(const RougeScore& got, double precision, double recall) {
  EXPECT_DOUBLE_EQ(got.precision, precision);
  EXPECT_DOUBLE_EQ(got.recall, recall);
  EXPECT_DOUBLE_EQ(got.f, precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0);
}

TEST(Rouge, ByHand) {
  const RougeScores scores = rouge("The cat sat on the mat", "the cat, the dog!", false);
  expect(scores.rouge1, 3.0 / 4, 3.0 / 6);
  expect(scores.rouge2, 1.0 / 3, 1.0 / 5);
  expect(scores.rouge_l, 3.0 / 4, 3.0 / 6);
  expect(scores.rouge_lsum, 3.0 / 4, 3.0 / 6);
  // Sentences in another order: only the summary's longest sequences do not mind.
  const RougeScores swapped = rouge("a b c\nd e f", "d e f\n\na b c", false);
  expect(swapped.rouge_l, 0.5, 0.5);
  expect(swapped.rouge_lsum, 1, 1);
  expect(rouge("running dogs", "run dog", false).rouge1, 0, 0);
  expect(rouge("running dogs", "run dog", true).rouge1, 1, 1);  // "run" has three letters and stays
}

TEST(Rouge, TextsWithoutWords) {
  for (const auto& [target, prediction] : {std::pair("", ""), {"a", ""}, {"", "a"}, {"日本語", "!?"}, {"\n\n", "a"}}) {
    const RougeScores scores = rouge(target, prediction, true);
    for (const RougeScore& one : {scores.rouge1, scores.rouge2, scores.rouge_l, scores.rouge_lsum}) expect(one, 0, 0);
  }
  expect(rouge("\u212A9 x", "k9", false).rouge1, 1, 0.5);  // as Python lowers KELVIN SIGN
}

TEST(Rouge, CasesOfRougeScore) {
  const std::string path = test_data_path("adapt/rouge/cases.jsonl");
  if (path.empty()) GTEST_SKIP() << missing_test_data("adapt/rouge/cases.jsonl");
  std::ifstream lines(path);
  int64_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const nlohmann::json record = nlohmann::json::parse(line);
    const std::string target = record["target"], prediction = record["prediction"];
    const nlohmann::json got =
        nlohmann::json::parse(rouge_json(rouge(target, prediction, false), rouge(target, prediction, true)));
    for (const char* words : {"plain", "stem"})
      for (const char* kind : {"rouge1", "rouge2", "rougeL", "rougeLsum"})
        for (size_t i = 0; i < 3; ++i)
          EXPECT_NEAR(got[words][kind][i].get<double>(), record[words][kind][i].get<double>(), 1e-6)
              << "line " << count + 1 << " " << words << " " << kind << " " << i;
  }
  EXPECT_GE(count, 40);
}

}  // namespace
}  // namespace octet
