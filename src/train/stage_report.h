// `octet plan` of a pipeline: what each stage needs and how long it takes, and the step they make together, from their
// compiled plans, the schedule and the Target's rates alone. Stages that are alike are compiled once.
#pragma once

#include <string>
#include <vector>

#include "train/plan_report.h"

namespace octet {

// Of one rank of a stage; all ranks of a stage are alike.
struct StageReport {
  std::vector<int32_t> layers, slots;  // slots by chunk: copies of what it saves
  PlanReport rank;                     // bytes, and the collectives of a step
  // Of a step:
  double sent_bytes = 0;                              // to other stages
  double computing = 0, collectives = 0, update = 0;  // seconds; update: of the optimiser, with collectives
  std::array<double, kWorkKinds> kernels = {};        // of computing, by kind
  double transfers = 0, idle = 0;                     // in the simulated schedule
};

struct PipelineReport {
  PlanReport model;  // parameters, units of a micro-batch and FLOPs a unit of the whole model; what compiling took
  int32_t chunks = 1, micro_batches = 1;  // of a data rank
  std::vector<StageReport> stages;
  int32_t compiled = 0;    // stages that were: others are like one of them
  bool has_rates = false;  // else seconds are by made-up rates, and good for ratios alone
  bool beside = false;     // runs on the Target carry transfers beside computing, else in turn with it
  // Of the simulated schedule and the update; what of it is not work over what is, of all stages, before the update. As
  // runs do it, and with transfers beside computing, which takes the least a schedule can.
  double step_seconds = 0, bubble = 0, beside_seconds = 0, beside_bubble = 0;
  double bubble_formula = 0;
  double flops_rate = 0;            // of the Target's products in the recipe's precision; 0: not known
  std::string flops_name = "bf16";  // which that is

  const StageReport& largest() const;  // by its bytes
  double units() const;                // of a step
  double units_per_second() const { return units() / step_seconds; }
  double rank_flops() const;  // FLOP/s of one rank by the model's FLOPs: forward and backward, none of recomputation
  double mfu() const { return flops_rate > 0 ? rank_flops() / flops_rate : 0; }
};

// Throws kInvalidArgument where settings and model have no such stages.
PipelineReport plan_stages(const TrainingWorkload& workload, const RunConfig& config, const Target& target,
                           bool verify = true);

std::string to_text(const PipelineReport& report, const Target& target);
std::string to_json(const PipelineReport& report);

}  // namespace octet
