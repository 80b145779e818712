// EncodeOptions::added_in on small vocabularies of every kind: added tokens are found within the ranges only, and all
// else has the ids of the whole text.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "base/testing/test_data.h"
#include "io/tokenizer.h"

namespace octet {
namespace {

constexpr const char* kKinds[] = {"qwen2",   "llama3",  "gpt2-prefix", "llama2",
                                  "mistral", "unigram", "punctuation", "wordpiece"};

std::unique_ptr<Tokenizer> load(const std::string& kind) {
  return load_tokenizer(source_dir() + "/src/io/testdata/tokenizers/" + kind);
}

// Added tokens that no word encodes to: not the unknown one.
std::vector<AddedToken> marks_of(const Tokenizer& tokenizer) {
  std::vector<AddedToken> marks;
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (token.text.find("unk") == std::string::npos && token.text.find("UNK") == std::string::npos)
      marks.push_back(token);
  }
  return marks;
}

int64_t count_marks(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const auto marks = marks_of(tokenizer);
  return std::count_if(ids.begin(), ids.end(), [&](int32_t id) {
    return std::any_of(marks.begin(), marks.end(), [&](const AddedToken& mark) { return mark.id == id; });
  });
}

TEST(TokenizerRanges, OutsideNothingIsRecognised) {
  for (const char* kind : kKinds) {
    const auto tokenizer = load(kind);
    std::string text = "user";
    for (const AddedToken& mark : marks_of(*tokenizer)) text += " hello" + mark.text + " the end" + mark.text;
    const std::vector<TextRange> none, all = {{0, text.size()}};
    EXPECT_EQ(count_marks(*tokenizer, tokenizer->encode(text, {.parse_special = true, .added_in = &none})), 0) << kind;
    EXPECT_EQ(tokenizer->encode(text, {.parse_special = true, .added_in = &all}),
              tokenizer->encode(text, {.parse_special = true}))
        << kind;
    EXPECT_EQ(tokenizer->encode(text, {.added_in = &all}), tokenizer->encode(text)) << kind;
  }
}

// Random texts of template's and user's stretches.
TEST(TokenizerRanges, OnlyTheTemplatesTokensCount) {
  constexpr uint64_t kSeed = 4711;
  Philox random(kSeed);
  const std::vector<std::string> words = {"the ", " hello", "user\n", "it's", "<", "|>",
                                          " 42",  "  ",     "\n",     "end",  "[", "]"};
  for (const char* kind : kKinds) {
    if (kind == std::string("llama2")) continue;  // its <tool> is found behind a space only
    const auto tokenizer = load(kind);
    const auto marks = marks_of(*tokenizer);
    for (int round = 0; round < 200; ++round) {
      std::string text, harmless;
      std::vector<TextRange> ranges, harmless_ranges;
      int64_t wanted = 0;
      for (uint32_t stretch = 0; stretch < 6; ++stretch) {
        const bool trusted = stretch % 2 == 0;
        const size_t begin = text.size(), harmless_begin = harmless.size();
        for (uint32_t piece = 0; piece < 3; ++piece) {
          const std::string& word = words[random.below(static_cast<uint32_t>(words.size()))];
          text += word, harmless += word;
          if (random.below(2) == 0) continue;
          const AddedToken& mark = marks[random.below(static_cast<uint32_t>(marks.size()))];
          text += mark.text;
          if (!trusted) continue;
          harmless += mark.text;
          ++wanted;
        }
        if (trusted)
          ranges.push_back({begin, text.size()}), harmless_ranges.push_back({harmless_begin, harmless.size()});
      }
      const auto ids = tokenizer->encode(text, {.parse_special = true, .added_in = &ranges});
      ASSERT_EQ(count_marks(*tokenizer, ids), wanted) << kind << " seed " << kSeed << ": " << text;
      ASSERT_EQ(tokenizer->encode(harmless, {.parse_special = true, .added_in = &harmless_ranges}),
                tokenizer->encode(harmless, {.parse_special = true}))
          << kind << " seed " << kSeed << ": " << harmless;
    }
  }
}

// A token that is matched behind normalisation: the ranges follow the text through it.
TEST(TokenizerRanges, NormalizedTokensCount) {
  const auto tokenizer = load("llama2");
  const std::string text = "see <tool> and <tool> or <tool>";
  const auto whole = tokenizer->encode(text);
  const int32_t tool = tokenizer->encode("<tool>")[0];
  ASSERT_EQ(std::count(whole.begin(), whole.end(), tool), 3);
  const auto count_in = [&](const std::vector<TextRange>& ranges) {
    const auto ids = tokenizer->encode(text, {.added_in = &ranges});
    return std::count(ids.begin(), ids.end(), tool);
  };
  EXPECT_EQ(count_in({{0, text.size()}}), 3);
  EXPECT_EQ(count_in({{0, 10}}), 1);
  EXPECT_EQ(count_in({{3, 10}, {24, 31}}), 2);
  EXPECT_EQ(count_in({{4, 9}, {15, 20}}), 0);
}

TEST(TokenizerRanges, ATokenAcrossAnEdgeIsText) {
  const auto tokenizer = load("qwen2");
  const std::string text = "a<tool>b";
  const int32_t tool = tokenizer->encode("<tool>")[0];
  for (size_t begin = 0; begin <= 3; ++begin) {
    for (size_t end = 5; end <= text.size(); ++end) {
      const std::vector<TextRange> ranges = {{begin, end}};
      const auto ids = tokenizer->encode(text, {.added_in = &ranges});
      EXPECT_EQ(std::count(ids.begin(), ids.end(), tool), begin <= 1 && end >= 7 ? 1 : 0) << begin << " " << end;
    }
  }
}

}  // namespace
}  // namespace octet
