// Recipe auto during a run: the policy of the workload's GEMMs, the rounds of statistics, and plans by decision.
//
// Owns no tensor: the trainer moves the state from one Stepper to the next (take_state, put_state).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "precision/policy.h"
#include "train/stepper.h"

namespace octet {

class AutoPrecision {
 public:
  // `options.compile` holds the recipe and the Target whose timings count. A round follows step 1 and every `interval`
  // steps after it. The workload outlives it.
  AutoPrecision(const TrainingWorkload& workload, const StepperOptions& options, const PolicySettings& settings,
                int64_t interval);

  bool due(int64_t step) const { return (step - 1) % interval_ == 0; }
  PrecisionPolicy& policy() { return policy_; }

  // Adds the statistics of frozen weights, of which a graph has no float32 values: those of the model that they are
  // read from, computed when first asked for. Of several ranks all call it.
  void add_frozen(StatsTable& stats, const std::string& model, Communicator* ranks);

  // The plan of the present decisions; `cached` tells whether it was compiled before.
  const Plan& plan(bool* cached = nullptr);

 private:
  const TrainingWorkload& workload_;
  StepperOptions options_;
  int64_t interval_;
  PrecisionPolicy policy_;
  std::map<std::string, Plan> plans_;  // by decisions, as text: plans hold no tensor
  std::optional<StatsTable> frozen_;
};

// The linears' GEMMs of graph "train" as the policy sees them, in the order of the graph.
std::vector<PolicyGemm> policy_gemms(const TrainingWorkload& workload, const StepperOptions& options);

}  // namespace octet
