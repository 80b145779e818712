#include "infer/ngram_drafter.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace octet {
namespace {

std::vector<int32_t> found(NgramIndex& index, const std::vector<int32_t>& tokens, int64_t most = 3) {
  std::vector<int32_t> drafts = {99};
  index.find(tokens, most, drafts);
  return drafts;
}

TEST(NgramIndex, FindsWhatFollowedTheLongestAndThenTheLatest) {
  NgramIndex index;
  std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 9, 3, 4, 6, 7};
  EXPECT_EQ(found(index, tokens), std::vector<int32_t>());
  tokens.insert(tokens.end(), {3, 4});
  EXPECT_EQ(found(index, tokens), (std::vector<int32_t>{6, 7, 3}));  // the latest 3 4
  tokens.insert(tokens.end(), {1, 2, 3, 4});
  EXPECT_EQ(found(index, tokens), (std::vector<int32_t>{5, 9, 3}));  // 1 2 3 4, though 3 4 was later elsewhere
  EXPECT_EQ(found(index, tokens, 0), std::vector<int32_t>());
}

TEST(NgramIndex, ARunGoesOnWithItself) {
  NgramIndex index;
  EXPECT_EQ(found(index, {8, 1, 2, 1, 2}, 5), (std::vector<int32_t>{1, 2, 1, 2, 1}));
}

// Grown token by token it finds what a search through all of the sequence finds.
TEST(NgramIndex, EqualsASearch) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Philox random(seed);
    NgramIndex index;
    std::vector<int32_t> tokens;
    int64_t hits = 0;
    for (int i = 0; i < 600; ++i) {
      for (uint64_t k = random.below(3) + 1; k > 0; --k) tokens.push_back(static_cast<int32_t>(random.below(6 + seed)));
      std::vector<int32_t> wanted;
      for (const size_t length : {8u, 4u, 2u}) {
        for (size_t end = tokens.size() - 1; wanted.empty() && end >= length && tokens.size() > length; --end)
          if (std::equal(tokens.end() - static_cast<int64_t>(length), tokens.end(),
                         tokens.begin() + static_cast<int64_t>(end - length)))
            for (size_t k = 0; k < 4; ++k)
              wanted.push_back(end + k < tokens.size() ? tokens[end + k] : wanted[end + k - tokens.size()]);
        if (!wanted.empty()) break;
      }
      ASSERT_EQ(found(index, tokens, 4), wanted) << "seed " << seed << ", " << tokens.size() << " tokens";
      hits += !wanted.empty();
    }
    EXPECT_GT(hits, 100);
  }
}

TEST(NgramDrafter, KeepsTextsApart) {
  NgramDrafter drafter;
  const std::vector<int32_t> a = {1, 2, 3, 1, 2}, b = {1, 2, 4, 1, 2};
  std::vector<DraftSequence> texts = {{.id = 1, .tokens = a, .most = 1}, {.id = 2, .tokens = b, .most = 1}};
  for (int turn = 0; turn < 2; ++turn) {
    drafter.propose(texts);
    EXPECT_EQ(texts[0].drafts, std::vector<int32_t>{3});
    EXPECT_EQ(texts[1].drafts, std::vector<int32_t>{4});
    drafter.forget(1);
  }
}

}  // namespace
}  // namespace octet
