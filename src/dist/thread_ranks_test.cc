// Ranks as threads of one process: exchanges, and what the others see when one fails.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "base/error.h"
#include "dist/communicator.h"

namespace octet {
namespace {

// Each rank gives every rank of the group a number; what it gets, in order of the group.
std::vector<int32_t> exchange(Communicator& rank, const std::vector<int32_t>& group, int32_t round) {
  std::vector<int32_t> mine, theirs(group.size());
  for (int32_t to : group) mine.push_back(1000 * round + 100 * rank.rank() + to);
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (size_t i = 0; i < group.size(); ++i) {
    send.push_back(std::as_bytes(std::span(&mine[i], 1)));
    receive.push_back(std::as_writable_bytes(std::span(&theirs[i], 1)));
  }
  rank.exchange(group, send, receive);
  return theirs;
}

TEST(ThreadRanks, ExchangeWithinGroups) {
  const Mesh mesh{{1, 2, 1, 4}};
  run_thread_ranks(mesh, [&](Communicator& rank) {
    for (int32_t round = 0; round < 100; ++round) {
      for (const AxisList& axes : {AxisList{Axis::kTensor}, {Axis::kData}, {Axis::kData, Axis::kTensor}}) {
        const std::vector<int32_t> group = mesh.group(rank.rank(), axes);
        const std::vector<int32_t> got = exchange(rank, group, round);
        for (size_t i = 0; i < group.size(); ++i) EXPECT_EQ(got[i], 1000 * round + 100 * group[i] + rank.rank());
      }
    }
  });
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(ThreadRanks, TheFirstFailureIsThrownAndEndsTheOthers) {
  std::atomic<int> ended = 0;
  const std::string message = message_of([&] {
    run_thread_ranks({{1, 3, 1, 1}}, [&](Communicator& rank) {
      check(rank.rank() != 1, ErrorCode::kInvalidArgument, "a fault of one rank");
      const std::string seen = message_of([&] { exchange(rank, {0, 1, 2}, 0); });
      EXPECT_EQ(seen, "rank " + std::to_string(rank.rank()) +
                          ": rank 1 failed: " + Error(ErrorCode::kInvalidArgument, "a fault of one rank").what());
      ++ended;
      fail(ErrorCode::kIo, "{}", seen);
    });
  });
  EXPECT_EQ(message, "a fault of one rank");
  EXPECT_EQ(ended, 2);
}

TEST(ThreadRanks, ASilentRankIsNamed) {
  const auto ranks = make_thread_ranks({{1, 2, 1, 1}}, 0.01);
  EXPECT_EQ(message_of([&] { exchange(*ranks[0], {0, 1}, 0); }), "rank 0 has waited 0.01 s for rank 1");
}

TEST(ThreadRanks, UnlikeExchangesAreRefused) {
  const std::string message = message_of([&] {
    run_thread_ranks({{1, 2, 1, 1}}, [](Communicator& rank) {
      std::vector<std::byte> mine(rank.rank() == 0 ? 4 : 8), theirs(mine.size());
      const std::span<const std::byte> send[] = {mine};
      const std::span<std::byte> receive[] = {theirs};
      rank.exchange({1 - rank.rank()}, send, receive);
    });
  });
  EXPECT_NE(message.find("they do not run the same exchanges"), std::string::npos) << message;
}

}  // namespace
}  // namespace octet
