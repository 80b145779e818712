#include "dist/control_ranks.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace octet {
namespace {

constexpr const char* kName = "exchange";

// Numbers and byte strings one after the other.
void add(std::string& packet, uint64_t number) { packet.append(reinterpret_cast<const char*>(&number), sizeof number); }
void add(std::string& packet, std::span<const std::byte> bytes) {
  add(packet, bytes.size());
  packet.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}
uint64_t take_number(std::span<const std::byte>& packet) {
  uint64_t number = 0;
  std::memcpy(&number, packet.data(), sizeof number);
  packet = packet.subspan(sizeof number);
  return number;
}
std::span<const std::byte> take_bytes(std::span<const std::byte>& packet) {
  const uint64_t size = take_number(packet);
  const std::span<const std::byte> bytes = packet.first(size);
  packet = packet.subspan(size);
  return bytes;
}

class ControlRank final : public Communicator {
 public:
  ControlRank(Control& control, const Mesh& mesh, int32_t rank) : Communicator(mesh, rank), control_(control) {}

  void exchange(const std::vector<int32_t>& ranks, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    std::string mine;  // how many, then receiver and bytes of each
    add(mine, ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) add(mine, static_cast<uint64_t>(ranks[i])), add(mine, send[i]);
    std::string all;  // of every rank in order, on rank 0
    for (const std::string& theirs : control_.gather(kName, mine)) add(all, std::as_bytes(std::span(theirs)));
    const std::string joined = control_.broadcast(kName, all);
    std::span<const std::byte> rest = std::as_bytes(std::span(joined));
    for (int32_t from = 0; from < mesh().ranks(); ++from) {
      std::span<const std::byte> sent = take_bytes(rest);
      for (uint64_t count = take_number(sent); count > 0; --count) {
        const auto to = static_cast<int32_t>(take_number(sent));
        const std::span<const std::byte> part = take_bytes(sent);
        if (to == rank()) copy(ranks, from, part, receive);
      }
    }
  }

  void abort(const std::string& why) override { control_.give_up(why); }

 private:
  void copy(const std::vector<int32_t>& ranks, int32_t from, std::span<const std::byte> part,
            std::span<const std::span<std::byte>> receive) const {
    const auto i = static_cast<size_t>(std::ranges::find(ranks, from) - ranks.begin());
    check(i < ranks.size() && receive[i].size() == part.size(), ErrorCode::kInternal,
          "rank {} sent {} bytes, rank {} expects {}: they do not run the same exchanges", from, part.size(), rank(),
          i < ranks.size() ? receive[i].size() : 0);
    std::copy(part.begin(), part.end(), receive[i].begin());
  }

  Control& control_;
};

}  // namespace

std::unique_ptr<Communicator> make_control_ranks(Control& control, const Mesh& mesh, int32_t rank) {
  return std::make_unique<ControlRank>(control, mesh, rank);
}

}  // namespace octet
