// What patterns mean here and in the libraries the files were written for, and steps of a tokenizer.json that are
// refused by name.
#include "io/tokenizer_steps.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/testing/test_error.h"
#include "io/tokenizer.h"

namespace octet {
namespace {

std::string split(const SplitRule& rule, std::string_view text) {
  const Splitter splitter({rule}, "test");
  SplitScratch scratch;
  std::string joined;
  splitter.each_piece(text, scratch, [&](std::string_view piece) {
    joined.append(piece).append("|");
    return true;
  });
  return joined;
}

TEST(Splitter, GivesPiecesOutAsTheyAreFoundAndStopsWhenAsked) {
  const Splitter splitter({{.pattern = R"(\s+)", .behavior = SplitRule::Behavior::kRemoved},
                           {.pattern = R"(\d)", .behavior = SplitRule::Behavior::kMergedWithPrevious},
                           {.pattern = "b"}},
                          "test");
  SplitScratch scratch;
  std::string joined;
  const auto pieces = [&](std::string_view text, size_t most) {
    joined.clear();
    return splitter.each_piece(text, scratch, [&](std::string_view piece) {
      joined.append(piece).append("|");
      return joined.size() < most;
    });
  };
  EXPECT_TRUE(pieces("a1 xbx  22c", 100));
  EXPECT_EQ(joined, "a1|x|b|x|2|2|c|");
  EXPECT_FALSE(pieces("a1 xbx  22c", 4));
  EXPECT_EQ(joined, "a1|x|");
  std::string endless = "a ";
  for (int i = 0; i < 20; ++i) endless += endless;
  EXPECT_FALSE(pieces(endless + "\xFF", 4));
  EXPECT_EQ(joined, "a|a|");
}

TEST(Regex, ReadsOnigurumasClasses) {
  EXPECT_EQ(split({.pattern = "[a[bc]]+"}, "xabcy"), "x|abc|y|");  // a class inside a class is a union
  EXPECT_EQ(split({.pattern = R"([^(\s|[.,])]+)"}, "ab.c) d"), "ab|.|c|) |d|");
  EXPECT_EQ(split({.pattern = R"([]x]+)"}, "a]xb"), "a|]x|b|");
  EXPECT_EQ(split({.pattern = R"([[:digit:]]+)"}, "a12b"), "a|12|b|");
  EXPECT_EQ(split({.pattern = R"(\h+)"}, "x0fy"), "x|0f|y|");
  EXPECT_EQ(split({.pattern = R"(\w+)"}, "n\xC3\xA9 e\xCC\x81!"), "n\xC3\xA9| |e\xCC\x81|!|");
  EXPECT_EQ(split({.pattern = "."}, "\xFF"), "\xFF|");
}

TEST(Regex, Behaviours) {
  using Behavior = SplitRule::Behavior;
  const auto dashes = [](Behavior behavior, bool invert = false) {
    return split({.pattern = "-", .literal = true, .behavior = behavior, .invert = invert}, "a--b-c");
  };
  EXPECT_EQ(dashes(Behavior::kIsolated), "a|-|-|b|-|c|");
  EXPECT_EQ(dashes(Behavior::kRemoved), "a|b|c|");
  EXPECT_EQ(dashes(Behavior::kRemoved, true), "-|-|-|");
  EXPECT_EQ(dashes(Behavior::kContiguous), "a|--|b|-|c|");
  EXPECT_EQ(dashes(Behavior::kMergedWithPrevious), "a-|-|b-|c|");
  EXPECT_EQ(dashes(Behavior::kMergedWithNext), "a|-|-b|-c|");
}

TEST(Regex, RefusesWhatItCannotMean) {
  for (const char* pattern : {"[a&&b]", "[a[^b]]", R"([\W])", R"(\H)", R"([\b])"}) {
    EXPECT_NE(error_of([&] { Regex(pattern, false, "x"); }).find("is not supported"), std::string::npos) << pattern;
  }
  for (const char* pattern : {"(", "[a", "a{2,1}", "\\"}) {
    EXPECT_NE(error_of([&] { Regex(pattern, false, "x"); }).find("does not compile"), std::string::npos) << pattern;
  }
}

TEST(Regex, EndlessBacktrackingIsAnError) {
  const std::string text = std::string(100000, 'a') + "b";
  const std::string message = error_of([&] { split({.pattern = "(a+)+$"}, text); });
  EXPECT_NE(message.find("gave up on a text of 100001 bytes"), std::string::npos) << message;
}

TEST(TokenizerJson, UnknownStepsAreRefusedByName) {
  const auto message = [](const std::string& steps) {
    const std::string json = R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, )" + steps + "}";
    return error_of([&] { parse_tokenizer_json(json, "x"); });
  };
  const auto refuses = [&](const std::string& steps, const std::string& part) {
    EXPECT_NE(message(steps).find(part), std::string::npos) << message(steps);
  };
  EXPECT_EQ(message(R"("normalizer": null)"), "(no error)");
  refuses(R"("normalizer": {"type": "Nmt"})", "normalizer Nmt (known:");
  refuses(R"("normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "b"})", "empty string");
  refuses(R"("pre_tokenizer": {"type": "CharDelimiterSplit"})", "pre-tokenizer CharDelimiterSplit (known:");
  refuses(R"("pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "last"})", "prepend_scheme last");
  refuses(R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace"}, {"type": "Digits"}]})",
          "Digits after Metaspace");
  refuses(R"("pre_tokenizer": {"type": "Punctuation", "behavior": "Other"})", "split behaviour Other");
  refuses(R"("decoder": {"type": "CTC"})", "decoder CTC (known:");
  refuses(R"("decoder": {"type": "ByteLevel"})", "decoder ByteLevel without");
  refuses(R"("decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})",
          "ByteFallback behind Fuse");
  refuses(R"("post_processor": {"type": "Other"})", "post-processor Other (known:");
  refuses(R"("pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "WordPiece"})", "decoder WordPiece with");
}

}  // namespace
}  // namespace octet
