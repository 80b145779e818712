// Perplexity on ranks that share a model is that of one rank, up to the order of sums; begin tokens, masks and separate
// documents.
#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include "base/testing/test_data.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

TEST(Perplexity, OnTwoRanksIsThatOfOne) {
  for (const char* name : {"gpt2", "llama_gqa_rope3"}) {
    const std::string folder = test_data_path(std::string("hf_goldens/") + name);
    if (folder.empty()) GTEST_SKIP() << missing_test_data(name);
    const auto weights = open_weights(folder);
    EvalTokens text;
    for (int32_t i = 0; i < 60; ++i) text.ids.push_back((i * 7 + i * i % 5) % 40);
    PerplexityOptions options{
        .recipe = parse_recipe("fp32"), .target = cpu_target(), .length = 16, .stride = 8, .windows = 2};
    const PerplexityResult alone = evaluate_perplexity(*weights, options, text, nullptr);
    options.tensor = 2;
    int64_t told = 0;
    const PerplexityResult shared =
        evaluate_perplexity(*weights, options, text, nullptr, [&](int64_t done) { told = done; });
    EXPECT_EQ(alone.tokens, 59);
    EXPECT_EQ(shared.tokens, alone.tokens);
    EXPECT_EQ(told, alone.tokens);
    EXPECT_NEAR(shared.loss(), alone.loss(), 1e-5 * alone.loss());
  }
}

std::unique_ptr<WeightSource> gpt2() {
  const std::string folder = test_data_path("hf_goldens/gpt2");
  return folder.empty() ? nullptr : open_weights(folder);
}

PerplexityOptions windows_of(int64_t length) {
  return {.recipe = parse_recipe("fp32"), .target = cpu_target(), .length = length, .windows = 2};
}

TEST(Perplexity, EveryWindowOfATextBeginsWithTheBeginToken) {
  const auto weights = gpt2();
  if (!weights) GTEST_SKIP() << missing_test_data("hf_goldens/gpt2");
  EvalTokens text{.begin_id = 39};
  for (int32_t i = 0; i < 20; ++i) text.ids.push_back(i * 7 % 37);
  const PerplexityResult whole = evaluate_perplexity(*weights, windows_of(10), text, nullptr);
  double sum = 0;  // of the two windows by themselves
  for (const ptrdiff_t first : {0, 10}) {
    EvalTokens part{.ids = {39}};
    part.ids.insert(part.ids.end(), text.ids.begin() + first, text.ids.begin() + first + 10);
    sum += evaluate_perplexity(*weights, windows_of(10), part, nullptr).loss_sum;
  }
  EXPECT_EQ(whole.tokens, 20) << "every token of the text has a loss";
  EXPECT_NEAR(whole.loss_sum, sum, 1e-5 * sum);  // float32 sums in another order
  text.ids.insert(text.ids.begin(), 39);         // as a tokenizer puts it there
  text.ids.insert(text.ids.begin() + 8, 39);     // of a second text
  EXPECT_EQ(evaluate_perplexity(*weights, windows_of(10), text, nullptr).tokens, 20) << "begin tokens are no targets";
}

TEST(Perplexity, OfASetIsOverTheTargetsItCounts) {
  const auto weights = gpt2();
  if (!weights) GTEST_SKIP() << missing_test_data("hf_goldens/gpt2");
  TempFolder folder;
  DatasetWriter writer(folder.file("set"), TokenType::kU16), other(folder.file("none"), TokenType::kU16);
  std::vector<std::vector<int32_t>> documents;
  for (int32_t d = 0; d < 3; ++d) {
    std::vector<int32_t>& ids = documents.emplace_back();
    for (int32_t i = 0; i < 5 + d; ++i) ids.push_back((d * 11 + i * 7) % 37);
    const std::vector<uint8_t> zeros(2);
    writer.append(std::span(ids).first(2), zeros);  // a prompt
    writer.append(std::span(ids).subspan(2));
    other.append(std::span(ids).first(2), zeros);
    writer.end_document(), other.end_document();
  }
  writer.commit(), other.commit();
  const EvalTokens set{.set = TokenDataset::open(folder.file("set"))};
  EXPECT_EQ(evaluate_perplexity(*weights, windows_of(6), set, nullptr).tokens, 3 + 4 + 5);
  // Documents kept apart are documents by themselves, wherever windows end.
  double sum = 0;
  for (const std::vector<int32_t>& ids : documents) {
    sum += evaluate_perplexity(*weights, windows_of(std::ssize(ids)), {.ids = ids}, nullptr).loss_sum;
    sum -= evaluate_perplexity(*weights, windows_of(1), {.ids = {ids[0], ids[1]}}, nullptr).loss_sum;
  }
  PerplexityOptions apart = windows_of(18);
  apart.separate_documents = true;
  const PerplexityResult separate = evaluate_perplexity(*weights, apart, set, nullptr);
  EXPECT_EQ(separate.tokens, 3 + 4 + 5);
  EXPECT_NEAR(separate.loss_sum, sum, 1e-5 * sum);  // float32 sums in another order
  for (const int64_t length : {5, 6, 7, 11}) {
    apart.length = length;
    EXPECT_EQ(evaluate_perplexity(*weights, apart, set, nullptr).tokens, 3 + 4 + 5) << length;
  }
  // Rows of whole documents: 7 + 6 and 5.
  pack_rows(folder.file("set"), folder.file("packed"), 13);
  const EvalTokens packed{.set = TokenDataset::open(folder.file("packed"), 0, -1, 13)};
  apart.length = 13;
  const PerplexityResult of_rows = evaluate_perplexity(*weights, apart, packed, nullptr);
  EXPECT_EQ(of_rows.tokens, 3 + 4 + 5);
  EXPECT_NEAR(of_rows.loss_sum, sum, 1e-5 * sum);  // float32 sums in another order
  EXPECT_NE(error_of([&] { evaluate_perplexity(*weights, windows_of(13), packed, nullptr); }).find("joined-documents"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              PerplexityOptions shorter = apart;
              shorter.length = 12;
              evaluate_perplexity(*weights, shorter, packed, nullptr);
            }).find("--length"),
            std::string::npos);
  apart.length = 11, apart.cache = DType::kF32;
  EXPECT_NE(error_of([&] { evaluate_perplexity(*weights, apart, set, nullptr); }).find("--separate-documents"),
            std::string::npos);
  const EvalTokens none{.set = TokenDataset::open(folder.file("none"))};
  EXPECT_NE(error_of([&] { evaluate_perplexity(*weights, windows_of(6), none, nullptr); }).find("all of the 6 tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
