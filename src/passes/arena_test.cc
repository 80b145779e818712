#include "passes/arena.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace octet {
namespace {

void expect_disjoint(const std::vector<ArenaItem>& items, const ArenaSize& size) {
  for (size_t i = 0; i < items.size(); ++i) {
    const ArenaItem& a = items[i];
    ASSERT_GE(a.offset, 0);
    ASSERT_LE(a.offset + a.bytes, size.bytes);
    for (size_t j = 0; j < i; ++j) {
      const ArenaItem& b = items[j];
      bool same_time = a.first <= b.last && b.first <= a.last;
      bool same_bytes = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
      ASSERT_FALSE(same_time && same_bytes) << "items " << j << " and " << i << " overlap";
    }
  }
}

TEST(Arena, Empty) {
  ArenaSize size = place_in_arena({}, 0);
  EXPECT_EQ(size.bytes, 0);
  EXPECT_EQ(size.peak, -1);
}

TEST(Arena, ReusesWhatDied) {
  std::vector<ArenaItem> items = {
      {.bytes = 64, .first = 0, .last = 1}, {.bytes = 64, .first = 1, .last = 2}, {.bytes = 64, .first = 2, .last = 3}};
  ArenaSize size = place_in_arena(items, 4);
  expect_disjoint(items, size);
  EXPECT_EQ(size.bytes, 128);
  EXPECT_EQ(size.live_bytes, 128);
}

TEST(Arena, RandomLivesNeverOverlapAndStayNearTheBound) {
  constexpr uint32_t kSeed = 7;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  double worst = 1;
  for (int round = 0; round < 60; ++round) {
    int32_t times = 1 + static_cast<int32_t>(random() % 300);
    std::vector<ArenaItem> items(random() % 400);
    for (ArenaItem& item : items) {
      item.first = static_cast<int32_t>(random() % static_cast<uint32_t>(times));
      int32_t life = static_cast<int32_t>(random() % (random() % 4 == 0 ? 200 : 8));
      item.last = std::min(times - 1, item.first + life);
      item.bytes = 64 * (1 + static_cast<int64_t>(random() % 50));
    }
    ArenaSize size = place_in_arena(items, times);
    expect_disjoint(items, size);
    ASSERT_GE(size.bytes, size.live_bytes);
    if (size.live_bytes > 0) {
      worst = std::max(worst, static_cast<double>(size.bytes) / static_cast<double>(size.live_bytes));
    }
  }
  // Random lives and sizes have no structure to exploit; model graphs stay within a percent (plan_memory_test).
  EXPECT_LT(worst, 1.35);
}

TEST(Arena, SavedForBackwardStacksWithoutGaps) {
  // Layer i saves a piece until its mirror time and uses short-lived scratch on both ways.
  std::vector<ArenaItem> items;
  constexpr int32_t kLayers = 500, kTimes = 4 * kLayers;
  for (int32_t i = 0; i < kLayers; ++i) {
    items.push_back({.bytes = 64 * (1 + i % 3), .first = 2 * i, .last = kTimes - 1 - 2 * i});
    items.push_back({.bytes = 256, .first = 2 * i, .last = 2 * i + 1});
    items.push_back({.bytes = 128, .first = kTimes - 2 - 2 * i, .last = kTimes - 1 - 2 * i});
  }
  ArenaSize size = place_in_arena(items, kTimes);
  expect_disjoint(items, size);
  EXPECT_EQ(size.bytes, size.live_bytes);
}

}  // namespace
}  // namespace octet
