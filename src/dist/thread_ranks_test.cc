// Ranks as threads of one process: exchanges, and what the others see when one fails.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/testing/test_error.h"
#include "dist/communicator.h"
#include "dist/socket.h"
#include "dist/testing/rank_expectations.h"

namespace octet {
namespace {

TEST(ThreadRanks, ExchangeWithinGroups) {
  run_thread_ranks({{1, 2, 1, 4}}, expect_exchanges_within_groups);
  run_thread_ranks({{1, 2, 1, 1}}, expect_exchanges_of_all_sizes);
}

TEST(ThreadRanks, ExchangesOfNeighbours) { run_thread_ranks({{4, 1, 1, 1}}, expect_exchanges_of_neighbours); }

TEST(ThreadRanks, AnAbortEndsAll) { run_thread_ranks({{1, 3, 1, 1}}, expect_an_abort_ends_all); }

TEST(ThreadRanks, UnlikeExchangesAreRefused) { run_thread_ranks({{1, 1, 1, 3}}, expect_unlike_exchanges_are_refused); }

TEST(ThreadRanks, ASilentRankIsNamed) {
  const auto ranks = make_thread_ranks({{1, 2, 1, 1}}, 0.01);
  expect_a_silent_rank_is_named(*ranks[0]);
}

TEST(ThreadRanks, TheFirstFailureIsThrownAndEndsTheOthers) {
  std::atomic<int> ended = 0;
  const std::string message = error_of([&] {
    run_thread_ranks({{1, 3, 1, 1}}, [&](Communicator& rank) {
      check(rank.rank() != 1, ErrorCode::kInvalidArgument, "a fault of one rank");
      std::vector<std::byte> mine(4), theirs(4);
      const std::span<const std::byte> send[] = {mine};
      const std::span<std::byte> receive[] = {theirs};
      const std::string seen = error_of([&] { rank.exchange({1}, send, receive); });
      EXPECT_EQ(seen, fmt::format("rank {}: rank 1 failed: a fault of one rank", rank.rank()));
      ++ended;
      fail(ErrorCode::kIo, "{}", seen);
    });
  });
  EXPECT_EQ(message, "a fault of one rank");
  EXPECT_EQ(ended, 2);
}

TEST(ThreadRanks, WorkDoneTogetherHasOneError) {
  run_thread_ranks({{1, 2, 1, 2}}, [&](Communicator& rank) {
    const auto own = [&] { return std::to_string(rank.rank()); };
    EXPECT_EQ(do_together(&rank, own), (std::vector<std::string>{"0", "1", "2", "3"}));
    const auto work = [&] {
      check(rank.rank() % 2 == 0, ErrorCode::kCorrupt, "a fault of {}", own());
      return own();
    };
    try {
      do_together(&rank, work);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), fmt::format("rank 1 of 4 on {}: a fault of 1", host_name()));
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    }
    barrier(rank);
  });
  EXPECT_EQ(do_together(nullptr, [] { return "alone"; }), std::vector<std::string>{"alone"});
}

// Work may take longer than a rank waits in an exchange.
TEST(ThreadRanks, WorkDoneTogetherMayTakeLong) {
  constexpr double kTimeout = 1;
  const auto work = [&](Communicator& rank) {
    do_together(&rank, [&] {
      if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(1.5 * kTimeout));
      return "";
    });
  };
  EXPECT_NO_THROW(run_thread_ranks({{1, 2, 1, 1}}, work, kTimeout));
}

}  // namespace
}  // namespace octet
