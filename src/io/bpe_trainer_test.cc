// The trainer against a naive one that recounts everything after each merge, and the vocabulary it makes.
#include "io/bpe_trainer.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "io/corpus.h"

namespace octet {
namespace {

constexpr uint64_t kSeed = 99;

WordCounts words_of(const std::string& text) {
  Splitter splitter({{.pattern = kGpt2Pattern}}, "test");
  SplitScratch scratch;
  WordCounts counts;
  count_words(text, splitter, scratch, counts);
  return counts;
}

// Recounts all pairs for every merge: highest count first, then the lowest pair of ids.
BpeVocabulary train_naively(const WordCounts& counts, int64_t vocab_size) {
  BpeVocabulary out;
  out.tokens.push_back("<|endoftext|>");
  std::vector<std::string> alphabet(byte_spellings().begin(), byte_spellings().end());
  std::sort(alphabet.begin(), alphabet.end());
  out.tokens.insert(out.tokens.end(), alphabet.begin(), alphabet.end());
  std::vector<std::pair<std::vector<int32_t>, int64_t>> words;
  for (const auto& [word, count] : counts) {
    std::vector<int32_t> ids;
    for (char byte : word) {
      const auto& spelling = byte_spellings()[static_cast<uint8_t>(byte)];
      ids.push_back(
          static_cast<int32_t>(std::find(out.tokens.begin(), out.tokens.end(), spelling) - out.tokens.begin()));
    }
    words.emplace_back(ids, count);
  }
  while (static_cast<int64_t>(out.tokens.size()) < vocab_size) {
    std::map<std::pair<int32_t, int32_t>, int64_t> pairs;
    for (const auto& [ids, count] : words) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) pairs[{ids[i], ids[i + 1]}] += count;
    }
    auto best = pairs.end();
    for (auto at = pairs.begin(); at != pairs.end(); ++at) {
      if (best == pairs.end() || at->second > best->second) best = at;
    }
    if (best == pairs.end() || best->second < 2) break;
    const auto [left, right] = best->first;
    const std::string joined = out.tokens[left] + out.tokens[right];
    const std::pair merge(out.tokens[left], out.tokens[right]);
    const auto known = std::find(out.tokens.begin(), out.tokens.end(), joined);
    const auto id = static_cast<int32_t>(known - out.tokens.begin());
    if (known == out.tokens.end()) out.tokens.push_back(joined);
    if (std::find(out.merges.begin(), out.merges.end(), merge) == out.merges.end()) out.merges.push_back(merge);
    for (auto& [ids, count] : words) {
      std::vector<int32_t> merged;
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool here = i + 1 < ids.size() && ids[i] == left && ids[i + 1] == right;
        merged.push_back(here ? id : ids[i]);
        i += here;
      }
      ids = merged;
    }
  }
  return out;
}

// Few letters and long words: overlapping pairs, ties and tokens reached in two ways come up all the time.
std::string tangled_text(uint64_t stream, int letters) {
  Philox random(kSeed, stream);
  std::string text;
  for (int word = 0; word < 120; ++word) {
    for (uint64_t i = 1 + random.below(12); i > 0; --i) text += static_cast<char>('a' + random.below(letters));
    text += random.below(8) ? " " : "\n";
  }
  return text;
}

TEST(BpeTrainer, EqualsNaiveTrainer) {
  for (uint64_t stream = 0; stream < 12; ++stream) {
    const auto words = words_of(tangled_text(stream, 1 + static_cast<int>(stream % 4)));
    const auto fast = train_bpe(words, {.vocab_size = 400}), naive = train_naively(words, 400);
    EXPECT_EQ(fast.tokens, naive.tokens) << "stream " << stream;
    EXPECT_EQ(fast.merges, naive.merges) << "stream " << stream;
  }
}

TEST(BpeTrainer, SavedVocabularyRoundTripsBytes) {
  const auto vocabulary = train_bpe(words_of(tangled_text(1, 4)), {.vocab_size = 320});
  EXPECT_EQ(vocabulary.tokens[0], "<|endoftext|>");
  const auto tokenizer = make_bpe(vocabulary, "trained");
  const auto again = parse_tokenizer_json(to_tokenizer_json(vocabulary), "saved");
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(again->eos_id(), 0);
  EXPECT_TRUE(again->byte_level());
  Philox random(kSeed, 77);
  for (int round = 0; round < 200; ++round) {
    std::string bytes;
    for (uint64_t i = random.below(100); i > 0; --i) bytes.push_back(static_cast<char>(random.below(256)));
    ASSERT_EQ(again->decode(again->encode(bytes)), bytes) << "round " << round;
    ASSERT_EQ(again->encode(bytes), tokenizer->encode(bytes));
  }
}

TEST(BpeTrainer, StopsWhenNoPairRepeats) {
  const auto vocabulary = train_bpe(words_of("abc def ghi"), {.vocab_size = 1000});
  EXPECT_EQ(vocabulary.tokens.size(), 257u);
  EXPECT_THROW(train_bpe({}, {.vocab_size = 100}), Error);
  EXPECT_THROW(train_bpe({}, {.vocab_size = 300, .special_tokens = {"<a>", "<a>"}}), Error);
}

TEST(BpeTrainer, ThreadsDoNotChangeTheResult) {
  TempFolder folder;
  for (uint64_t i = 0; i < 6; ++i) write_file(folder.file(fmt::format("{}.txt", i)), tangled_text(i, 4));
  TextCounts one_counts, four_counts;
  const std::vector<SplitRule> splits = {{.pattern = kGpt2Pattern}};
  const auto one = count_corpus_words({folder.path()}, {}, splits, 1, one_counts);
  const auto four = count_corpus_words({folder.path()}, {}, splits, 4, four_counts);
  EXPECT_EQ(one, four);
  EXPECT_EQ(one_counts.bytes, four_counts.bytes);
  EXPECT_EQ(train_bpe(one, {.vocab_size = 350}).merges, train_bpe(four, {.vocab_size = 350}).merges);
}

TEST(CharacterTrainer, CollectsSortedCharacters) {
  TempFolder folder;
  write_file(folder.file("a.txt"), "ba\xC3\xA9\n");
  EXPECT_EQ(collect_corpus_characters({folder.path()}, {}, 2), (std::vector<std::string>{"\n", "a", "b", "\xC3\xA9"}));
  write_file(folder.file("a.txt"), "ba\xFF");
  EXPECT_THROW(collect_corpus_characters({folder.path()}, {}, 2), Error);
}

}  // namespace
}  // namespace octet
