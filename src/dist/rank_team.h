// The ranks of tensor parallelism that serve or evaluate one model, and outlive a call: threads of this process
// (dist/local_ranks.h), or the processes that a launcher started. Rank 0 leads, the others follow its messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/communicator.h"

namespace octet {

namespace cuda {
class DeviceRanks;  // kernels/cuda/collective/ranks.h
}

// The GPUs of ranks; none: they compute on CPUs. exec/rank_devices.h gives them.
struct RankDevices {
  int usable = 0;  // of this process
  // Device `device` of these for the rank that `ranks` is, which outlives it. `check` throws when a rank is lost:
  // called while the host waits for the device. Freed, it ends what is under way where check() throws.
  std::function<std::shared_ptr<cuda::DeviceRanks>(Communicator& ranks, int device, std::function<void()> check)> make =
      {};
};

// What the executor of one rank is made with.
struct LocalRank {
  Communicator* ranks = nullptr;
  cuda::DeviceRanks* devices = nullptr;  // null: a CPU rank
  int device = 0;
  // Throws when a rank has failed, and on rank 0 when the time of its run() is over: for whoever waits for a device.
  std::function<void()> check = {};
};

class RankTeam {
 public:
  using Work = std::function<void(const LocalRank& rank)>;
  using Message = std::shared_ptr<const std::vector<std::byte>>;

  RankTeam(int32_t count, int32_t own) : count_(count), own_(own) {}
  RankTeam(const RankTeam&) = delete;
  virtual ~RankTeam() = default;  // the own rank's executor is gone already

  int32_t count() const { return count_; }
  int32_t own() const { return own_; }  // the rank of this process: 0, but in other processes of a launcher

  // `follow` for each rank that has no process of its own, in a thread each. Called once.
  virtual void start(const Work& follow) = 0;
  // `work` as the own rank, in the calling thread. An error of it ends what waits on all ranks; throws the error that
  // came first on any of them, which names the rank. After `seconds` a wait for the own device ends with an error that
  // says for whom it has waited; 0: no limit. Exchanges have their own.
  void run(const Work& work, double seconds = 0);
  // `work` of one of the ranks of this process: an error of it is known to all before the stack unwinds. Where GPU
  // ranks share a process, freeing a device's memory may wait for other devices' kernels, which wait for this rank.
  virtual void guard(const LocalRank& rank, const std::function<void()>& work) = 0;
  // All ranks come here and go on together, however long one takes. Throws when a rank has failed.
  virtual void barrier() = 0;
  virtual void check_alive() const = 0;  // throws when a rank has failed

  // A message of rank 0 for all others, of at least a byte. receive() waits for the next, however long that takes;
  // null: there is none after close(), which every process calls once it is done. Without it the others take it for
  // lost.
  virtual void broadcast(Message message) = 0;
  virtual Message receive(const LocalRank& rank) = 0;
  virtual void close() noexcept = 0;
  // What the rank runs from now on, for the error of whoever loses it.
  virtual void note(const LocalRank& rank, int64_t step, std::string_view graph) = 0;

 protected:
  virtual LocalRank own_rank() const = 0;
  // By rank: how many messages it has yet to do that rank 0 has done or does.
  virtual std::vector<int64_t> behind() const = 0;
  void check_time() const {
    if (in_time_) in_time_();
  }

 private:
  std::string waited_for() const;

  const int32_t count_, own_;
  std::function<void()> in_time_;  // throws when the time of run() is over; of its thread alone
};

struct TeamOptions {
  RankDevices devices = {};  // one for each rank
  double timeout = 60;       // seconds that a rank waits in an exchange for another, or hears nothing of it
  std::string build;         // texts that must be equal in all processes
  std::string settings;      // of the ranks, before they are made
};

// `count` ranks: the processes of the launcher that started this one as one of several, else threads. Throws
// kInvalidArgument where there are not as many processes or GPUs, or texts differ.
std::unique_ptr<RankTeam> open_rank_team(int32_t count, const TeamOptions& options);

}  // namespace octet
