#include "dist/communicator.h"

#include <algorithm>
#include <numeric>

namespace octet {
namespace {

std::vector<int32_t> all_ranks(const Communicator& ranks) {
  std::vector<int32_t> all(static_cast<size_t>(ranks.mesh().ranks()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

void broadcast(Communicator& ranks, std::span<std::byte> bytes) {
  const std::vector<int32_t> all = all_ranks(ranks);
  std::vector<std::span<const std::byte>> send(all.size());
  std::vector<std::span<std::byte>> receive(all.size());
  const std::vector<std::byte> mine(bytes.begin(), bytes.end());
  if (ranks.rank() == 0) std::ranges::fill(send, std::span(mine));
  receive[0] = bytes;
  ranks.exchange(all, send, receive);
}

std::vector<std::vector<std::byte>> gather(Communicator& ranks, std::span<const std::byte> mine, To to) {
  const std::vector<int32_t> all = all_ranks(ranks);
  const bool gets = to == To::kAll || ranks.rank() == 0;
  std::vector<std::vector<std::byte>> theirs(all.size());
  const auto exchange = [&](std::span<const std::byte> sent, const auto& span_of) {
    std::vector<std::span<const std::byte>> send(all.size());
    std::vector<std::span<std::byte>> receive(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      if (to == To::kAll || i == 0) send[i] = sent;
      if (gets) receive[i] = span_of(i);
    }
    ranks.exchange(all, send, receive);
  };
  const uint64_t size = mine.size();
  std::vector<uint64_t> sizes(all.size());
  exchange(std::as_bytes(std::span(&size, 1)),
           [&](size_t i) { return std::as_writable_bytes(std::span(&sizes[i], 1)); });
  for (size_t i = 0; i < all.size(); ++i) theirs[i].resize(sizes[i]);
  exchange(mine, [&](size_t i) { return std::span(theirs[i]); });
  return theirs;
}

bool any_of(Communicator& ranks, bool flag) {
  const auto byte = static_cast<std::byte>(flag);
  return std::ranges::any_of(gather(ranks, std::span(&byte, 1)),
                             [](const auto& other) { return other[0] != std::byte{0}; });
}

}  // namespace octet
