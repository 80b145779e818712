#include "dist/communicator.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <numeric>

#include "base/error.h"
#include "dist/socket.h"

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

std::vector<std::vector<std::byte>> exchange_all(Communicator& ranks,
                                                 std::span<const std::span<const std::byte>> mine) {
  const std::vector<int32_t> all = all_ranks(ranks);
  std::vector<uint64_t> sent(all.size()), sizes(all.size());
  std::vector<std::span<const std::byte>> send(all.size());
  std::vector<std::span<std::byte>> receive(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    sent[i] = mine[i].size();
    send[i] = std::as_bytes(std::span(&sent[i], 1));
    receive[i] = std::as_writable_bytes(std::span(&sizes[i], 1));
  }
  ranks.exchange(all, send, receive);
  std::vector<std::vector<std::byte>> theirs(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    theirs[i].resize(sizes[i]);
    receive[i] = theirs[i];
  }
  ranks.exchange(all, mine, receive);
  return theirs;
}

std::vector<std::vector<std::byte>> gather(Communicator& ranks, std::span<const std::byte> mine) {
  return exchange_all(ranks, std::vector(static_cast<size_t>(ranks.mesh().ranks()), mine));
}

bool any_of(Communicator& ranks, bool flag) {
  const auto byte = static_cast<std::byte>(flag);
  return std::ranges::any_of(gather(ranks, std::span(&byte, 1)),
                             [](const auto& other) { return other[0] != std::byte{0}; });
}

std::vector<std::string> do_together(Communicator* ranks, const std::function<std::string()>& work) {
  if (ranks == nullptr) return {work()};
  std::future<std::string> made = std::async(std::launch::async, work);
  // Rounds that are short against the time a rank waits for another.
  while (any_of(*ranks, made.wait_for(std::chrono::milliseconds(200)) != std::future_status::ready)) {
  }
  std::string mine;  // the code of an error, 0 for none; then its message, or what was made
  try {
    mine = '\0' + made.get();
  } catch (const Error& error) {
    mine = fmt::format("{}rank {} of {} on {}: {}", static_cast<char>(1 + static_cast<int>(error.code())),
                       ranks->rank(), ranks->mesh().ranks(), host_name(), error.message());
  }
  std::vector<std::string> all;
  for (const std::vector<std::byte>& theirs : gather(*ranks, std::as_bytes(std::span(mine)))) {
    std::string text(reinterpret_cast<const char*>(theirs.data()), theirs.size());
    if (text[0] != '\0') throw_error(static_cast<ErrorCode>(text[0] - 1), text.substr(1));
    all.push_back(text.substr(1));
  }
  return all;
}

}  // namespace octet
