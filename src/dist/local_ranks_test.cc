// Ranks that outlive a call: they meet, follow, and end when one fails.
#include "dist/local_ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "base/testing/test_error.h"
#include "base/threads.h"

namespace octet {
namespace {

TEST(LocalRanks, FollowMeetAndExchange) {
  std::atomic<int> followed = 0;
  {
    LocalRanks ranks(3, {});
    ranks.start([&](const LocalRank& rank) {
      ranks.barrier();
      EXPECT_TRUE(any_of(*rank.ranks, rank.ranks->rank() == 2));
      ranks.barrier();
      ++followed;
    });
    ranks.run([&](const LocalRank& rank) {
      EXPECT_EQ(rank.ranks->rank(), 0);
      EXPECT_EQ(rank.devices, nullptr);
      ranks.barrier();
      EXPECT_TRUE(any_of(*rank.ranks, false));
    });
    ranks.run([&](const LocalRank&) { ranks.barrier(); });
  }
  EXPECT_EQ(followed, 2);
}

TEST(LocalRanks, AnErrorEndsAllAndIsTheOneThatIsThrown) {
  for (const int32_t lost : {0, 1, 2}) {
    LocalRanks ranks(3, {});
    ranks.start([&](const LocalRank& rank) {
      check(rank.ranks->rank() != lost, ErrorCode::kCorrupt, "a fault");
      ranks.barrier();
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
    LocalRanks ranks(2, {});
    ranks.start([&](const LocalRank& rank) {
      while (const RankTeam::Message message = ranks.receive(rank))
        heard = 10 * heard + static_cast<int>((*message)[0]);
    });
    for (const int number : {1, 2, 3})
      ranks.broadcast(std::make_shared<const std::vector<std::byte>>(1, static_cast<std::byte>(number)));
    ranks.close();
  }
  EXPECT_EQ(heard, 123);
}

// Devices that are an address each: dist does no more with them than make and free them.
class DevicesOfRanks : public testing::Test {
 protected:
  cuda::DeviceRanks* at(int32_t rank) {
    return reinterpret_cast<cuda::DeviceRanks*>(&places_[static_cast<size_t>(rank)]);
  }
  RankDevices devices() {
    return {.usable = 3, .make = [this](Communicator& ranks, int device, const std::function<void()>& check) {
              EXPECT_EQ(device, ranks.rank());
              const auto free = [this, check](cuda::DeviceRanks*) {
                try {
                  check();
                } catch (const Error&) {
                  ++knew_;
                }
              };
              return std::shared_ptr<cuda::DeviceRanks>(at(ranks.rank()), free);
            }};
  }
  // Rank 1 fails when all have their devices.
  void work(const LocalRank& rank) {
    EXPECT_EQ(rank.devices, at(rank.ranks->rank()));
    EXPECT_EQ(rank.device, rank.ranks->rank());
    barrier(*rank.ranks);
    check(rank.ranks->rank() != 1, ErrorCode::kCorrupt, "a fault");
    barrier(*rank.ranks);
  }
  std::array<std::byte, 3> places_ = {};
  std::atomic<int> knew_ = 0;  // devices that were freed with the knowledge that another rank is lost
};

TEST_F(DevicesOfRanks, AreMadeForEachAndKnowOfALostOne) {
  {
    LocalRanks ranks(3, devices());
    ranks.start([&](const LocalRank& rank) { work(rank); });
    EXPECT_THROW(ranks.run([&](const LocalRank& rank) { work(rank); }), Error);
  }
  EXPECT_EQ(knew_, 2);
  knew_ = 0;
  Mesh mesh;
  mesh[Axis::kTensor] = 3;
  EXPECT_THROW(run_local_ranks(mesh, devices(), [&](const LocalRank& rank) { work(rank); }), Error);
  EXPECT_EQ(knew_, 2);
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
