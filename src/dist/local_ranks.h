// Ranks as threads of this process. GPU ranks have a device each; CPU ranks share the cores. Of LocalRanks the caller
// is rank 0, the others follow.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "dist/rank_team.h"

namespace octet {

// Runs `work` for each rank of the mesh in a thread of its own and waits for all; rank r has device r of `devices`.
// When one throws, what waits for it ends on all; the error of the first that threw is thrown here.
void run_local_ranks(const Mesh& mesh, const RankDevices& devices, const std::function<void(const LocalRank&)>& work,
                     double timeout = 60);

// The cores are shared out among so many ranks while it lives.
class ThreadShare {
 public:
  explicit ThreadShare(int32_t ranks);
  ThreadShare(const ThreadShare&) = delete;
  ~ThreadShare();

 private:
  int before_;
};

// Messages on their way to one rank, in order.
class MessageQueue {
 public:
  using Message = RankTeam::Message;
  void push(Message message);
  void close();          // after what is there already
  Message pop();         // waits; null: closed. What was got before has been done
  int64_t open() const;  // that is under way or waits

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  bool closed_ = false, doing_ = false;
};

class LocalRanks final : public RankTeam {
 public:
  // Rank r has device r of `devices`; throws what their make() does. `timeout`: seconds that a CPU rank waits in an
  // exchange for another.
  LocalRanks(int32_t count, RankDevices devices, double timeout = 60);
  // Waits for what start() started to return. Where a rank has failed, what waits ends first.
  ~LocalRanks() override;

  void start(const Work& follow) override;
  void guard(const LocalRank& rank, const std::function<void()>& work) override;
  void barrier() override;
  void check_alive() const override;  // throws the first failure
  void broadcast(Message message) override;
  Message receive(const LocalRank& rank) override;
  void close() noexcept override;
  void note(const LocalRank&, int64_t, std::string_view) override {}

 private:
  std::shared_ptr<cuda::DeviceRanks> open_device(int32_t rank);
  LocalRank rank(int32_t rank, cuda::DeviceRanks* device) const;
  LocalRank own_rank() const override { return rank(0, device_.get()); }
  std::vector<int64_t> behind() const override;
  void fail(int32_t rank, const std::string& why, ErrorCode code);

  const RankDevices devices_;
  ThreadShare share_;
  std::vector<MessageQueue> queues_;  // of ranks 1 ...
  std::vector<std::unique_ptr<Communicator>> ranks_;
  std::shared_ptr<cuda::DeviceRanks> device_;  // of rank 0

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> failure_;  // the first
  int32_t waiting_ = 0;
  int64_t meetings_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace octet
