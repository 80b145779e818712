#include "dist/testing/rank_expectations.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

// Gives element i of `send` to rank group[i]; what it gives back, of the same number of elements, or of sizes[i].
template <typename T>
std::vector<std::vector<T>> exchange(Communicator& rank, const std::vector<int32_t>& group,
                                     const std::vector<std::vector<T>>& send, std::vector<size_t> sizes = {}) {
  std::vector<std::vector<T>> received;
  std::vector<std::span<const std::byte>> from;
  std::vector<std::span<std::byte>> to;
  for (size_t i = 0; i < send.size(); ++i) {
    received.emplace_back(sizes.empty() ? send[i].size() : sizes[i]);
    from.push_back(std::as_bytes(std::span(send[i])));
  }
  for (auto& part : received) to.push_back(std::as_writable_bytes(std::span(part)));
  rank.exchange(group, from, to);
  return received;
}

std::vector<int32_t> all_ranks(const Communicator& rank) {
  std::vector<int32_t> all(static_cast<size_t>(rank.mesh().ranks()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

void expect_exchanges_within_groups(Communicator& rank) {
  for (int32_t round = 0; round < 100; ++round) {
    for (const AxisList& axes : {AxisList{Axis::kTensor}, {Axis::kData}, {Axis::kData, Axis::kTensor}}) {
      const std::vector<int32_t> group = rank.mesh().group(rank.rank(), axes);
      std::vector<std::vector<int32_t>> send, want;
      for (const int32_t other : group) {
        send.push_back({1000 * round + 100 * rank.rank() + other});
        want.push_back({1000 * round + 100 * other + rank.rank()});
      }
      EXPECT_EQ(exchange(rank, group, send), want);
    }
  }
}

void expect_exchanges_of_all_sizes(Communicator& rank) {
  const std::vector<int32_t> all = all_ranks(rank);
  for (const size_t size : {0, 1, 1000, 100'000, 3 << 20}) {
    std::vector<std::vector<uint8_t>> send, want;
    for (const int32_t other : all) {
      send.emplace_back(size, static_cast<uint8_t>(16 * rank.rank() + other));
      want.emplace_back(size, static_cast<uint8_t>(16 * other + rank.rank()));
    }
    EXPECT_TRUE(exchange(rank, all, send) == want) << size;
  }
}

void expect_exchanges_of_neighbours(Communicator& rank) {
  const int32_t own = rank.rank();
  for (uint8_t round = 0; round < 20; ++round) {
    const std::vector<uint8_t> letter(1000 * round, round), nothing;
    for (int32_t times = 0; times < own; ++times)
      EXPECT_EQ(exchange<uint8_t>(rank, {own - 1, own}, {nothing, nothing}, {letter.size(), 0})[0], letter);
    for (int32_t times = 0; times <= own && own + 1 < rank.mesh().ranks(); ++times)
      exchange<uint8_t>(rank, {own, own + 1}, {nothing, letter}, {0, 0});
  }
}

void expect_an_abort_ends_all(Communicator& rank) {
  if (rank.rank() == 1) rank.abort("rank 1 failed: a fault of one rank");
  const std::vector<std::vector<int32_t>> send(all_ranks(rank).size(), {1});
  for (int later = 0; later < 2; ++later)
    EXPECT_EQ(error_of([&] { exchange(rank, all_ranks(rank), send); }),
              fmt::format("rank {}: rank 1 failed: a fault of one rank", rank.rank()));
}

void expect_unlike_exchanges_are_refused(Communicator& rank) {
  const std::vector<std::vector<uint8_t>> send(all_ranks(rank).size(), std::vector<uint8_t>(rank.rank() == 1 ? 8 : 4));
  const std::string error = error_of([&] {
    while (true) exchange(rank, all_ranks(rank), send);  // some pairs of ranks agree, and go on until one does not
  });
  rank.abort(error);
  EXPECT_NE(error.find("they do not run the same exchanges"), std::string::npos) << error;
}

void expect_a_silent_rank_is_named(Communicator& rank) {
  EXPECT_EQ(error_of([&] { exchange<int32_t>(rank, {0, 1}, {{1}, {2}}); }), "rank 0 has waited 0.01 s for rank 1");
}

}  // namespace octet
