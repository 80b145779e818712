// Every kind of vocabulary against what Hugging Face's tokenizers and Google's sentencepiece gave for it
// (tests/tokenizers/make_fixtures.py): ids, decoded text, streaming, saving.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "io/tokenizer.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

const std::string kFolder = source_dir() + "/src/io/testdata/tokenizers";

struct Case {
  std::string text;
  bool parse = false, invalid = false;
  std::vector<int32_t> ids;
  std::string decoded;
};

std::vector<Case> read_cases(const std::string& path) {
  std::vector<Case> cases;
  for (const auto& each : nlohmann::json::parse(read_file(path))) {
    Case one;
    one.parse = each.value("parse", false);
    one.invalid = each.contains("hex");
    one.text = each.value("text", std::string());
    const std::string hex = each.value("hex", std::string());
    for (size_t i = 0; i < hex.size(); i += 2) one.text += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    one.ids = each.at("ids").get<std::vector<int32_t>>();
    one.decoded = each.at("decoded").get<std::string>();
    cases.push_back(std::move(one));
  }
  return cases;
}

// Octet gives back the exact bytes; the oracles write one or more U+FFFD for bytes that are no character.
std::string with_marked_faults(std::string_view text) {
  int64_t replaced = 0;
  std::string out = utf8_replace_invalid(text, &replaced);
  const std::string two = "\xEF\xBF\xBD\xEF\xBF\xBD";
  for (size_t at = out.find(two); at != std::string::npos; at = out.find(two, at)) out.erase(at, 3);
  return out;
}

class Oracle : public testing::TestWithParam<std::string> {
 protected:
  std::string folder() const { return kFolder + "/" + GetParam(); }
};

TEST_P(Oracle, SameIdsAndText) {
  const auto tokenizer = load_tokenizer(folder());
  const auto cases = read_cases(folder() + "/cases.json");
  ASSERT_GT(cases.size(), 50u);
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << "text \"" << one.text << "\"" << (one.parse ? " parsed" : ""));
    EXPECT_EQ(tokenizer->encode(one.text, {.parse_special = one.parse}), one.ids);
    EXPECT_EQ(with_marked_faults(tokenizer->decode(one.ids, true)), with_marked_faults(one.decoded));
    StreamDecoder stream(*tokenizer);
    std::string shown;
    for (int32_t id : one.ids) {
      const std::string more = stream.push(id);
      EXPECT_EQ(utf8_valid_prefix(more), more.size());
      shown += more;
    }
    EXPECT_EQ(with_marked_faults(shown + stream.finish()), with_marked_faults(one.decoded));
  }
}

TEST_P(Oracle, EnoughIdsAreTheFirstOfAll) {
  const auto tokenizer = load_tokenizer(folder());
  std::string text;
  for (const Case& one : read_cases(folder() + "/cases.json")) text += one.text + " ";
  for (const bool parse : {false, true}) {
    const auto all = tokenizer->encode(text, {.parse_special = parse});
    for (const int64_t enough : {1, 2, 10, 100, 1'000'000}) {
      const auto some = tokenizer->encode(text, {.parse_special = parse, .enough = enough});
      EXPECT_GE(some.size(), std::min(all.size(), static_cast<size_t>(enough)));
      ASSERT_LE(some.size(), all.size());
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << enough;
    }
  }
}

TEST_P(Oracle, SavedFilesGiveTheSameTokenizer) {
  const auto tokenizer = load_tokenizer(folder());
  TempFolder copy;
  tokenizer->save(copy.path());
  const auto again = load_tokenizer(copy.path());
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(again->bos_id(), tokenizer->bos_id());
  EXPECT_EQ(again->adds_bos(), tokenizer->adds_bos());
}

TEST_P(Oracle, NoTextIsTurnedIntoSpecialTokens) {
  const auto tokenizer = load_tokenizer(folder());
  std::vector<std::string> bits = {" ", "\n", "a", "\xF0\x9F", "\xE2\x96\x81", "\xC3\xA9", "7", "tok"};
  for (const AddedToken& token : tokenizer->added_tokens()) bits.push_back(token.text);
  Philox random(11);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += bits[random.below(bits.size())];
    for (int32_t id : tokenizer->encode(text)) {
      const bool unknown = tokenizer->token_bytes(id) == "<unk>" || tokenizer->token_bytes(id) == "[UNK]";
      EXPECT_TRUE(!tokenizer->is_special(id) || unknown) << text << " gave " << tokenizer->token_bytes(id);
    }
  }
}

TEST_P(Oracle, LongRunsTakeLinearTime) {
  const auto tokenizer = load_tokenizer(folder());
  for (const char* unit : {"a", " ", "\n", "ab", "\xC3\xA9", "\xF0\x9F\xA6\x99", "1", "=", "a "}) {
    std::string text;
    while (text.size() < 100000) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer->encode(text);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    EXPECT_LT(spent.count(), 3.0) << "\"" << unit << "\" repeated";  // ms where linear, minutes where quadratic
    EXPECT_LE(ids.size(), 2 * text.size() + 2);
  }
}

std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Oracle, testing::ValuesIn(kinds()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace octet
