// train(): one Run, or a Run for each rank of the settings' mesh: threads of this process, or this process as one of
// those that a launcher started.
#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "dist/joined_rank.h"
#include "dist/local_ranks.h"
#include "exec/rank_devices.h"
#include "train/choose_mesh.h"
#include "train/run.h"

namespace octet {
namespace {

// Ranks but the first one: tasks, whose texts they score too, and no word but in their logs.
TrainHooks quiet(const TrainHooks& hooks) {
  return {.workload = hooks.workload,
          .open_tasks = hooks.open_tasks,
          .target = hooks.target,
          .free_disk = hooks.free_disk,
          .timed = hooks.timed};
}

// Says what was chosen, and puts it into the settings.
RunConfig with_mesh(RunConfig config, const MeshChoice& choice) {
  config.chosen_mesh = choice.mesh;
  if (choice.fewer)
    log_warning("{}", choice.note);
  else if (!choice.note.empty())
    log_info("{}", choice.note);
  validate(config);
  return config;
}

TrainResult train_threads(const RunConfig& config, const TrainHooks& hooks, Device device) {
  const int32_t count = config.mesh().ranks();
  RunConfig each = config;  // the machine's threads are shared out
  each.threads = std::max<int64_t>((config.threads > 0 ? config.threads : thread_count()) / count, 1);
  TrainResult result;
  const auto work = [&](const LocalRank& rank) {
    const RankLinks links{.ranks = rank.ranks, .devices = rank.devices, .device = rank.device};
    if (rank.ranks->rank() == 0) {
      result = Run(each, hooks, links).loop();
    } else {
      set_thread_log_level(LogLevel::kOff);
      Run(each, quiet(hooks), links).loop();
    }
  };
  run_local_ranks(config.mesh(), rank_devices(device, config.peer_memory), work,
                  static_cast<double>(config.rank_timeout));
  return result;
}

Device device_of(const RunConfig& config, const TrainHooks& hooks) {
  return hooks.target ? hooks.target->device : resolve_device(config.device);
}

// Ranks beyond the mesh leave at once.
TrainResult train_process(const RunConfig& given, const TrainHooks& hooks, const RankIdentity& identity) {
  const Device device = device_of(given, hooks);
  const MeshChoice choice = choose_mesh(given, identity.size, fmt::format("ranks ({})", identity.launcher));
  const int32_t count = choice.mesh.ranks();
  check(count == identity.size || !choice.note.empty(), ErrorCode::kInvalidArgument,
        "{} ranks were started ({}), but the settings want {}: start {}, or set one of parallel.tensor, parallel.data "
        "and parallel.context to 0, which takes what is left",
        identity.size, identity.launcher, count, count);
  if (identity.rank >= count) {
    log_info("rank {} of {} has nothing to do and exits: {}", identity.rank, identity.size, choice.note);
    return {.left_over = true};
  }
  if (identity.rank != 0) set_log_level(LogLevel::kError);
  const RunConfig config = with_mesh(given, choice);
  if (count == 1) return Run(config, hooks).loop();
  RunConfig copy = config;
  JoinedRank joined(identity, {.mesh = config.mesh(),
                               .devices = rank_devices(device, config.peer_memory),
                               .timeout = static_cast<double>(config.rank_timeout),
                               .build = hooks.build,
                               .settings = settings_of(copy).to_yaml()});
  const LocalRank& rank = joined.rank();
  TrainHooks own = identity.rank == 0 ? hooks : quiet(hooks);
  own.handle_signals = hooks.handle_signals;  // a launcher may signal any rank
  TrainResult result;
  joined.guard([&] {
    const RankLinks links{
        .ranks = rank.ranks, .control = &joined.control(), .devices = rank.devices, .device = rank.device};
    result = Run(config, own, links).loop();
  });
  joined.control().close();
  return result;
}

}  // namespace

TrainResult train(const RunConfig& config, const TrainHooks& hooks) {
  const std::optional<RankIdentity> identity = find_identity([](const char* name) { return std::getenv(name); });
  if (identity && identity->size > 1) return train_process(config, hooks, *identity);
  if (config.pipeline * config.tensor * config.data_ranks * config.context == 1) return Run(config, hooks).loop();
  const Device device = device_of(config, hooks);
  const RunConfig chosen =
      with_mesh(config, device == Device::kCuda ? choose_mesh(config, cuda_device_count(), "GPUs that can be used here")
                                                : MeshChoice{config.mesh()});
  return chosen.mesh().ranks() == 1 ? Run(chosen, hooks).loop() : train_threads(chosen, hooks, device);
}

}  // namespace octet
