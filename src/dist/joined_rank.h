// This process as one of the ranks that a launcher started: the control plane, the way to exchange with the others,
// the device, and the knowledge that a rank is lost. For training and serving alike.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "dist/control.h"
#include "dist/rank_team.h"

namespace octet {

struct JoinOptions {
  Mesh mesh = {};            // of the launcher's first ranks, or all
  RankDevices devices = {};  // the rank takes that of its number on the machine
  double timeout = 60;       // seconds without a word of a rank, after which it is lost; five times that until all came
  std::string build, settings;       // texts that must be equal on all ranks
  std::function<void()> check = {};  // may throw too while the host waits for the device
};

class JoinedRank {
 public:
  // Returns when all ranks are there. Throws what Control does, and kInvalidArgument for fewer GPUs than ranks here.
  JoinedRank(const RankIdentity& identity, JoinOptions options);
  JoinedRank(const JoinedRank&) = delete;
  ~JoinedRank();  // without control().close(): this rank is lost to the others

  Control& control() const { return *control_; }
  const LocalRank& rank() const { return rank_; }
  // When `work` throws, all others are told why.
  void guard(const std::function<void()>& work);
  void check() const;  // throws when a rank is lost

 private:
  void open(const RankIdentity& identity);
  void on_lost(const std::string& why);

  const JoinOptions options_;
  mutable std::mutex mutex_;
  std::string lost_;                // what the control plane says of a lost rank
  Communicator* joined_ = nullptr;  // whose exchanges end then
  std::unique_ptr<Control> control_;
  std::unique_ptr<Communicator> ranks_;
  std::shared_ptr<cuda::DeviceRanks> devices_;
  LocalRank rank_;
};

}  // namespace octet
