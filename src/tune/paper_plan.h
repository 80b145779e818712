// What training runs need, without a device: the compiled plans of few of their layers, extended to all. Layouts share
// what they have in common: a plan depends on neither the number of stages nor, where gradients alone are exchanged,
// that of data ranks. Seconds are those of all layers but for rounding. Bytes are too where graphs of micro-batches
// have the fullest arena and layers of all stages keep the same; updates of sharded optimisers and first stages may be
// a few per cent off: plan_whole() plans all layers.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ir/target.h"
#include "passes/pipeline_schedule.h"
#include "train/run_config.h"
#include "train/workload.h"
#include "tune/stage_sample.h"

namespace octet {

// Bytes of the fullest rank.
struct MemorySplit {
  int64_t weights = 0, copies = 0, moments = 0, gradients = 0, scales = 0, activations = 0, arena = 0, others = 0;
  int64_t total() const { return weights + copies + moments + gradients + scales + activations + arena + others; }
};

// Seconds of a step, of the busiest stage.
struct TimeSplit {
  double products = 0, attention = 0, other = 0, collectives = 0, update = 0, host = 0, transfers = 0, idle = 0;
  double total() const { return products + attention + other + collectives + update + host + transfers + idle; }
};

// The model alone: the same for all layouts.
struct ModelFacts {
  std::string description;
  CountedUnit unit;
  int64_t parameters = 0;
  double unit_flops = 0;  // forward and backward, none of recomputation
};

struct Prediction {
  MemorySplit memory;
  TimeSplit time;
  int32_t stage = 0, stages = 1;  // that `memory` is of
  double units = 0;               // of a step, of all ranks
  int64_t ranks = 1;
  bool whole = false;  // planned with all layers
  double seconds() const { return time.total(); }
  int64_t bytes() const { return memory.total(); }
  double units_per_second() const { return units / seconds(); }
};

class PaperPlanner {
 public:
  explicit PaperPlanner(Target target);
  ~PaperPlanner();

  const Target& target() const { return target_; }
  ModelFacts facts(const RunConfig& config);
  // Throws what a run of these settings would, before it allocates anything. From several threads at once.
  Prediction predict(const RunConfig& config);
  Prediction plan_whole(const RunConfig& config) const;
  int64_t compiled() const;  // programs so far

 private:
  struct Unit;
  std::shared_ptr<const Unit> unit_of(const RunConfig& config, int64_t period);
  Prediction compose_whole(const RunConfig& config, const Unit& unit) const;
  Prediction compose_stages(const RunConfig& config, const Unit& unit);
  using Order = std::shared_ptr<const std::vector<PipelineSchedule>>;
  Order order_of(int32_t stages, int32_t chunks, int32_t micro_batches);

  Target target_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Unit>> units_;
  std::map<std::string, ModelFacts> facts_;
  std::map<std::array<int32_t, 3>, Order> orders_;
};

}  // namespace octet
