#include "dist/rank_team.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "dist/joined_rank.h"
#include "dist/local_ranks.h"

namespace octet {

void RankTeam::run(const Work& work, double seconds) {
  const LocalRank rank = own_rank();
  const auto begin = std::chrono::steady_clock::now();
  if (seconds > 0)
    in_time_ = [this, begin, seconds] {
      check(std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(seconds), ErrorCode::kIo,
            "rank {} has waited {} s for {}", own_, seconds, waited_for());
    };
  try {
    guard(rank, [&] { work(rank); });
  } catch (...) {
    in_time_ = nullptr;
    throw;
  }
  in_time_ = nullptr;
  check_alive();
}

// The ranks that are the farthest behind, if any is.
std::string RankTeam::waited_for() const {
  const std::vector<int64_t> behind = this->behind();
  const int64_t most = *std::ranges::max_element(behind);
  if (most <= 0) return "its device: no rank is known to be behind";
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < behind.size(); ++rank)
    if (behind[rank] == most) ranks.push_back(rank);
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
}

namespace {

// This process is one of the ranks. Messages go through the control plane, in order with what ranks exchange there.
class ProcessRanks final : public RankTeam {
 public:
  ProcessRanks(const RankIdentity& identity, const TeamOptions& options)
      : RankTeam(identity.size, identity.rank), joined_(identity, join_options(options)) {}

  void start(const Work&) override {}
  void guard(const LocalRank&, const std::function<void()>& work) override { joined_.guard(work); }
  void barrier() override { joined_.control().broadcast("meeting", ""); }
  void check_alive() const override { joined_.check(); }

  void broadcast(Message message) override {
    for (int32_t rank = 1; rank < count(); ++rank) joined_.control().send_parcel(rank, *message);
  }
  Message receive(const LocalRank&) override {
    auto message = std::make_shared<const std::vector<std::byte>>(joined_.control().next_parcel(0));
    return message->empty() ? nullptr : message;
  }
  // Rank 0 waits for the others, which come to this when they have made what they were told.
  void close() noexcept override {
    if (std::exchange(closed_, true)) return;
    try {
      if (own() == 0) broadcast(std::make_shared<const std::vector<std::byte>>());
      joined_.control().close();
    } catch (const std::exception&) {  // a rank is lost, as all know
    }
  }
  void note(const LocalRank&, int64_t step, std::string_view graph) override { joined_.control().note(step, graph); }

 private:
  JoinOptions join_options(const TeamOptions& options) const {
    JoinOptions join{.devices = options.devices,
                     .timeout = options.timeout,
                     .build = options.build,
                     .settings = options.settings,
                     .check = [this] { check_time(); }};
    join.mesh[Axis::kTensor] = count();
    return join;
  }
  LocalRank own_rank() const override { return joined_.rank(); }
  std::vector<int64_t> behind() const override {  // by heartbeats
    const std::vector<uint64_t> begun = joined_.control().graphs();
    std::vector<int64_t> behind;
    for (const uint64_t calls : begun) behind.push_back(static_cast<int64_t>(begun[0]) - static_cast<int64_t>(calls));
    return behind;
  }

  bool closed_ = false;
  JoinedRank joined_;
};

}  // namespace

std::unique_ptr<RankTeam> open_rank_team(int32_t count, const TeamOptions& options) {
  const auto identity = find_identity([](const char* name) { return std::getenv(name); });
  if (identity && identity->size > 1) {
    check(identity->size == count, ErrorCode::kInvalidArgument,
          "tensor: {} ranks share the model, and {} processes were started ({}): start {}, or want tensor {}", count,
          identity->size, identity->launcher, count, identity->size);
    if (identity->rank != 0) set_log_level(LogLevel::kError);
    return std::make_unique<ProcessRanks>(*identity, options);
  }
  check(!options.devices.make || count <= options.devices.usable, ErrorCode::kInvalidArgument,
        "tensor: {} ranks want a GPU each, and {} can be used: want as many, or start a process for each on several "
        "machines (docs/serving.md)",
        count, options.devices.usable);
  return std::make_unique<LocalRanks>(count, options.devices, options.timeout);
}

}  // namespace octet
