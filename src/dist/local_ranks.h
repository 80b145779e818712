// Ranks as threads of this process. GPU ranks have a device each, joined by NCCL; CPU ranks share the cores. Those of
// LocalRanks, of tensor parallelism, outlive a call: the caller is rank 0, the others follow.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "dist/communicator.h"
#include "kernels/cuda/collective/ranks.h"

namespace octet {

// What the executor of one rank is made with.
struct LocalRank {
  Communicator* ranks = nullptr;
  cuda::DeviceRanks* devices = nullptr;  // null: a CPU rank
  int device = 0;
  // Throws when a rank has failed, and on rank 0 when the time of its lead() is over: for whoever waits for a device.
  std::function<void()> check = {};
};

// Runs `work` for each rank of the mesh in a thread of its own and waits for all; `gpus`: rank r has usable device r;
// `peer_memory` as in NcclOptions. When one throws, what waits for it ends on all; the error of the first that threw is
// thrown here.
void run_local_ranks(const Mesh& mesh, bool gpus, const std::function<void(const LocalRank&)>& work,
                     double timeout = 60, bool peer_memory = true);

// The cores are shared out among so many ranks while it lives.
class ThreadShare {
 public:
  explicit ThreadShare(int32_t ranks);
  ThreadShare(const ThreadShare&) = delete;
  ~ThreadShare();

 private:
  int before_;
};

class LocalRanks {
 public:
  using Work = std::function<void(const LocalRank& rank)>;

  // Starts `follow` for every rank but 0, in a thread of its own. `gpus`: rank r has usable device r; throws
  // kUnsupported without NCCL. `timeout`: seconds that a CPU rank waits in an exchange for another.
  LocalRanks(int32_t count, bool gpus, const Work& follow, double timeout = 60);
  LocalRanks(const LocalRanks&) = delete;
  // Waits for `follow` to return; rank 0's executor is gone already. Where a rank has failed, what waits ends first.
  ~LocalRanks();

  int32_t count() const { return static_cast<int32_t>(ranks_.size()); }
  // `work` as rank 0, in the calling thread. An error of it ends what waits on all ranks; throws the error that came
  // first on any of them, with the rank's number. After `seconds` a wait for rank 0's device ends with an error that
  // says for whom() it has waited; 0: no limit. Exchanges have their own.
  void lead(const Work& work, double seconds = 0, const std::function<std::string()>& whom = {});
  // `work` of one of the ranks: an error of it is known to all before the stack unwinds. Where GPU ranks share a
  // process, freeing a device's memory may wait for other devices' kernels, which wait for this rank.
  void guard(const LocalRank& rank, const std::function<void()>& work);
  // All ranks come here and go on together, however long one takes. Throws when a rank has failed.
  void meet();

 private:
  std::unique_ptr<cuda::DeviceRanks> open_devices(int32_t rank);
  LocalRank rank(int32_t rank, cuda::DeviceRanks* devices) const;
  void fail(int32_t rank, const std::string& why, ErrorCode code);
  void check_alive() const;  // throws the first failure

  const bool gpus_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
  std::unique_ptr<cuda::DeviceRanks> devices_;  // of rank 0

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> failure_;  // the first
  int32_t waiting_ = 0;
  int64_t meetings_ = 0;
  std::function<void()> in_time_;  // throws when the time of lead() is over; of its thread alone
  std::vector<std::thread> threads_;
};

}  // namespace octet
