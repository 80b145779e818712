// train(): one Run, or a Run for each rank of the settings' mesh: threads of this process, or this process as one of
// those that a launcher started.
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "dist/control.h"
#include "dist/control_ranks.h"
#include "dist/launch.h"
#include "dist/nccl.h"
#include "dist/open_mpi.h"
#include "train/run.h"

namespace octet {
namespace {

// Ranks but the first one: nothing of the hooks, and no word but in their logs.
TrainHooks quiet(const TrainHooks& hooks) { return {.target = hooks.target, .free_disk = hooks.free_disk}; }

TrainResult train_threads(const RunConfig& config, const TrainHooks& hooks) {
  const int32_t count = config.mesh().ranks();
  const bool gpus = (hooks.target ? hooks.target->device : resolve_device(config.device)) == Device::kCuda;
  check(
      !gpus || cuda_device_count() >= count, ErrorCode::kInvalidArgument,
      "parallel.tensor={} x parallel.data={} x parallel.context={} are {} ranks, and {} GPUs can be used here: want a "
      "GPU for each rank, or train.device=cpu",
      config.tensor, config.data_ranks, config.context, count, cuda_device_count());
  RunConfig each = config;  // the machine's threads are shared out
  each.threads = std::max<int64_t>((config.threads > 0 ? config.threads : thread_count()) / count, 1);
  TrainResult result;
  std::atomic<int32_t> lost = -1;
  const auto run = [&](Communicator& rank) {
    RankLinks links{.ranks = &rank, .device = gpus ? rank.rank() : 0};
    std::unique_ptr<cuda::DeviceRanks> devices;
    if (gpus) {
      const auto look = [&] { check(lost < 0, ErrorCode::kIo, "rank {} is lost", lost.load()); };
      devices = make_nccl_ranks(rank, {.device = links.device, .check = look});
      links.devices = devices.get();
    }
    if (rank.rank() == 0) {
      result = Run(each, hooks, links).loop();
    } else {
      set_thread_log_level(LogLevel::kOff);
      Run(each, quiet(hooks), links).loop();
    }
  };
  const auto work = [&](Communicator& rank) {
    try {
      run(rank);
    } catch (...) {
      lost = rank.rank();
      throw;
    }
  };
  run_thread_ranks(config.mesh(), work, static_cast<double>(config.rank_timeout));
  return result;
}

// Under MPI its own, else the control plane's: for GPUs it carries what hosts tell each other, for CPUs all.
std::unique_ptr<Communicator> join_processes(const RunConfig& config, const RankIdentity& identity, bool gpus,
                                             Control& control) {
  const bool mpi = !gpus && identity.launcher != "octet" && identity.launcher != "torchrun";
  // Later than the control plane, which knows more of a rank that is silent.
  return mpi ? open_mpi(config.mesh(), static_cast<double>(config.rank_timeout + 2))
             : make_control_ranks(control, config.mesh(), identity.rank);
}

TrainResult train_process(const RunConfig& config, const TrainHooks& hooks, const RankIdentity& identity) {
  if (identity.rank != 0) set_log_level(LogLevel::kError);
  const bool gpus = resolve_device(config.device) == Device::kCuda;
  std::mutex mutex;
  std::string lost;  // what the control plane says of a lost rank
  Communicator* joined = nullptr;
  const auto on_lost = [&](const std::string& why) {
    const std::lock_guard lock(mutex);
    lost = why;
    if (joined != nullptr) joined->abort(why);
  };
  const auto timeout = static_cast<double>(config.rank_timeout);
  Control control(identity, {.rendezvous_timeout = 5 * timeout,
                             .timeout = timeout,
                             .build = hooks.build,
                             .log = [](const std::string& line) { log_warning("{}", line); },
                             .on_lost = on_lost});
  std::unique_ptr<Communicator> ranks;
  try {
    RunConfig copy = config;
    control.compare("settings", settings_of(copy).to_yaml());
    ranks = join_processes(config, identity, gpus, control);
    RankLinks links{.ranks = ranks.get(), .control = &control};
    std::unique_ptr<cuda::DeviceRanks> devices;
    if (gpus) {
      check(identity.local_rank < cuda_device_count(), ErrorCode::kInvalidArgument,
            "rank {} is number {} on {}, where {} GPUs can be used: start as many ranks as there are GPUs",
            identity.rank, identity.local_rank, identity.host, cuda_device_count());
      links.device = identity.local_rank;
      const auto look = [&] {
        const std::lock_guard lock(mutex);
        check(lost.empty(), ErrorCode::kIo, "{}", lost);
      };
      devices = make_nccl_ranks(*ranks, {.device = links.device, .check = look});
      links.devices = devices.get();
    } else {
      const std::lock_guard lock(mutex);
      joined = ranks.get();
    }
    TrainHooks own = identity.rank == 0 ? hooks : quiet(hooks);
    own.handle_signals = hooks.handle_signals;  // a launcher may signal any rank
    TrainResult result = Run(config, own, links).loop();
    control.close();
    return result;
  } catch (const std::exception& error) {
    control.give_up(dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what());
    const std::lock_guard lock(mutex);
    joined = nullptr;
    throw;
  }
}

}  // namespace

TrainResult train(const RunConfig& config, const TrainHooks& hooks) {
  const std::optional<RankIdentity> identity = find_identity([](const char* name) { return std::getenv(name); });
  const int32_t ranks = config.mesh().ranks();
  if (identity && identity->size > 1) {
    check(identity->size == ranks, ErrorCode::kInvalidArgument,
          "{} started {} ranks; parallel.tensor={} x parallel.data={} x parallel.context={} are {}: start {}, or set "
          "parallel.data={}",
          identity->launcher, identity->size, config.tensor, config.data_ranks, config.context, ranks, ranks,
          identity->size / std::max<int64_t>(config.tensor * config.context, 1));
    validate(config);
    return train_process(config, hooks, *identity);
  }
  if (ranks == 1) return Run(config, hooks).loop();
  validate(config);
  return train_threads(config, hooks);
}

}  // namespace octet
