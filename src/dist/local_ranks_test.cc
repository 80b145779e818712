// Ranks that outlive a call: they meet, follow, and end when one fails.
#include "dist/local_ranks.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/testing/test_error.h"
#include "base/threads.h"

namespace octet {
namespace {

TEST(LocalRanks, FollowMeetAndExchange) {
  std::atomic<int> followed = 0;
  {
    LocalRanks ranks(3, false);
    ranks.start([&](const LocalRank& rank) {
      ranks.meet();
      EXPECT_TRUE(any_of(*rank.ranks, rank.ranks->rank() == 2));
      ranks.meet();
      ++followed;
    });
    ranks.run([&](const LocalRank& rank) {
      EXPECT_EQ(rank.ranks->rank(), 0);
      EXPECT_EQ(rank.devices, nullptr);
      ranks.meet();
      EXPECT_TRUE(any_of(*rank.ranks, false));
    });
    ranks.run([&](const LocalRank&) { ranks.meet(); });
  }
  EXPECT_EQ(followed, 2);
}

TEST(LocalRanks, AnErrorEndsAllAndIsTheOneThatIsThrown) {
  for (const int32_t lost : {0, 1, 2}) {
    LocalRanks ranks(3, false);
    ranks.start([&](const LocalRank& rank) {
      check(rank.ranks->rank() != lost, ErrorCode::kCorrupt, "a fault");
      ranks.meet();
    });
    const auto lead = [&] {
      ranks.run([&](const LocalRank& rank) {
        check(lost != 0, ErrorCode::kCorrupt, "a fault");
        barrier(*rank.ranks);
      });
    };
    EXPECT_EQ(error_of(lead), fmt::format("rank {} of 3: a fault", lost));
    EXPECT_EQ(error_of(lead), fmt::format("rank {} of 3: a fault", lost)) << "and again";
  }
}

TEST(LocalRanks, WhatIsToldIsHeardInOrderUntilTheEnd) {
  std::atomic<int> heard = 0;
  {
    LocalRanks ranks(2, false);
    ranks.start([&](const LocalRank& rank) {
      while (const RankTeam::Message message = ranks.hear(rank)) heard = 10 * heard + static_cast<int>((*message)[0]);
    });
    for (const int number : {1, 2, 3})
      ranks.tell(std::make_shared<const std::vector<std::byte>>(1, static_cast<std::byte>(number)));
    ranks.close();
  }
  EXPECT_EQ(heard, 123);
}

TEST(LocalRanks, CoresAreSharedOutAndGivenBack) {
  const int before = thread_count();
  {
    const ThreadShare share(before + 1);
    EXPECT_EQ(thread_count(), 1);
  }
  EXPECT_EQ(thread_count(), before);
}

}  // namespace
}  // namespace octet
