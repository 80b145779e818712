#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace octet {
namespace {

// The known answers published with the Random123 library (philox4x32, 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, GraphCountersDoNotCollide) {
  std::set<PhiloxBlock> seen;
  int drawn = 0;
  for (uint64_t seed : {0u, 1u, 2u})
    for (uint64_t step : {0u, 1u, 2u})
      for (uint32_t micro_batch : {0u, 1u})
        for (uint32_t node : {0u, 1u, 7u})
          for (uint64_t block : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
            seen.insert(graph_random(seed, step, micro_batch, node, block));
            ++drawn;
          }
  EXPECT_EQ(static_cast<int>(seen.size()), drawn);
}

TEST(Philox, AStreamCanBeginAtAnyBlock) {
  Philox whole(3, 1);
  for (uint64_t block = 0; block < 5; ++block) {
    Philox part(3, 1, block);
    for (int word = 0; word < 4; ++word) EXPECT_EQ(part.next_u32(), whole.next_u32()) << block;
  }
}

TEST(Philox, StreamsAreReproducibleAndDiffer) {
  Philox a(3, 1), b(3, 1), c(3, 2);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    uint64_t x = a.next_u64();
    EXPECT_EQ(x, b.next_u64());
    differs |= x != c.next_u64();
  }
  EXPECT_TRUE(differs);
}

TEST(Philox, BelowIsUniform) {
  Philox random(5);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) ++counts.at(random.below(7));
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);  // 5 standard deviations of a binomial (93)
  EXPECT_EQ(random.below(1), 0u);
  for (int i = 0; i < 100; ++i) EXPECT_LT(random.below((uint64_t{1} << 63) + 1), (uint64_t{1} << 63) + 1);
}

TEST(Philox, NormalHasTheRightMoments) {
  Philox random(6);
  double sum = 0, squares = 0;
  const int count = 200000;
  for (int i = 0; i < count; ++i) {
    double value = random.normal();
    ASSERT_TRUE(std::isfinite(value));
    sum += value, squares += value * value;
  }
  EXPECT_NEAR(sum / count, 0, 0.012);      // 5 / sqrt(200000)
  EXPECT_NEAR(squares / count, 1, 0.016);  // 5 sqrt(2 / 200000)
}

TEST(Philox, UniformStaysBelowOne) {
  EXPECT_LT(uniform_from_bits(0xffffffff), 1.0f);
  EXPECT_EQ(uniform_from_bits(0), 0.0f);
}

}  // namespace
}  // namespace octet
