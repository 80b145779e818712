// `octet plan`: what a training run would need, from its compiled plan alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/plan.h"
#include "passes/node_clock.h"
#include "train/run_config.h"
#include "train/workload.h"

namespace octet {

// Pieces of the arena that are alike but for their layer, live when it is fullest.
struct PeakRow {
  std::string name;  // "layers.*.mlp.up"
  std::string op;    // or a fusion's kind
  TensorType type;
  bool kept = false;  // from forward to backward
  int64_t pieces = 0, bytes = 0;
};

// The collectives of one kind in a graph.
struct CollectiveRow {
  std::string graph, op, over;
  int64_t calls = 0;
  double bytes = 0;    // that a rank sends in a run
  double seconds = 0;  // one after the other; 0: the target does not say how fast its links are
  double exposed = 0;  // that kernels wait, for earlier ones of the stream too, by the target's times of these
};

// A step of one rank, of all its micro-batches, told from what the Target says of its kernels and links.
struct StepTime {
  int64_t micro_batches = 1;
  GraphSeconds model;               // forward and backward
  GraphSeconds update;              // of the optimiser, with gradients reduced before it
  double host = 0;                  // beside its kernels
  double model_flops = 0;           // of the step and rank: forward and backward, none of recomputation
  double units = 0;                 // of all ranks
  double flops_rate = 0;            // of products in the recipe's precision; 0: not known
  std::string flops_name = "bf16";  // which that is
  double seconds() const { return model.all() + update.all() + host; }
};
// FLOP/s of large products under a recipe, and the name of their precision.
std::pair<double, std::string> product_rate(const Recipe& recipe, const Target& target);

struct PlanReport {
  std::string model;  // TrainingWorkload::description()
  CountedUnit unit = {};
  int64_t parameters = 0;          // of the model
  int64_t trained_parameters = 0;  // of them
  int64_t active_parameters = 0;   // of them, those a unit goes through: fewer in mixtures of experts
  int64_t rank_parameters = 0;     // of them, those whose masters one rank holds, padding included
  Mesh mesh = {};
  std::vector<CollectiveRow> collectives = {};
  int64_t units = 0;           // of one micro-batch, of one rank of parallel.context
  double forward_flops = 0;    // per unit; of causal attention half of the full square
  double backward_flops = 0;   // per unit, without recomputation
  double recompute_flops = 0;  // per unit
  bool causal = true;          // attention, where there is any
  int64_t frozen_bytes = 0;    // held in the form that products read, outside the next two
  int64_t weight_bytes = 0, compute_bytes = 0, moment_bytes = 0, gradient_bytes = 0, scale_bytes = 0;
  int64_t activation_bytes = 0;  // kept from forward to backward, at its maximum; of a stage in all its slots
  int64_t transfer_bytes = 0;    // of a stage: places for what it sends and receives
  int64_t transient_bytes = 0;   // the rest of the arena's peak
  int64_t workspace_bytes = 0, input_bytes = 0;
  int64_t padding_bytes = 0;  // states begin at the target's alignment
  int64_t total_bytes = 0;
  std::string peak_at;     // graph and node where the arena is fullest
  int64_t live_bytes = 0;  // there
  int64_t nodes = 0;
  double compile_seconds = 0;
  std::optional<StepTime> step = {};  // none: the target has no rates
  std::string precision;              // recipe auto: the levels that GEMMs start on, as precision_map() has them,
  std::map<std::string, std::string> levels;  // and by key of each: rung_name()
  std::vector<SavedValue> saved;              // of graph "train"
  std::vector<PeakRow> peak;                  // largest first; adds up to live_bytes
};

PlanReport report_plan(const TrainingWorkload& workload, const Plan& plan, double compile_seconds,
                       const CompileOptions& options);
// Of them, what a pipeline's stage has too: its bytes, ranks and nodes; and what the model says of itself.
void report_bytes(const Plan& plan, PlanReport& report);
void report_model(const TrainingWorkload& workload, const Program& whole, PlanReport& report);
// Builds, compiles and reports without allocating any tensor.
PlanReport plan_training(const TrainingWorkload& workload, const RunConfig& config, const Target& target);

// Adds the collectives of a graph, which a step runs so many times, to rows of their own kind, under this name.
void add_collectives(const Graph& graph, const Target& target, const std::string& name, int64_t runs,
                     std::vector<CollectiveRow>& rows);

std::string to_text(const PlanReport& report, const Target& target);
std::string to_json(const PlanReport& report);
std::string peak_text(const PlanReport& report);

// Parts of the text that plans of stages share.
std::string human_bytes(int64_t bytes);
std::string human_count(double count);  // 124439808 -> "124.4M"
std::string model_line(const PlanReport& report);
std::string flops_line(const PlanReport& report);
std::string axes_text(const Mesh& mesh);           // "tp=2 pp=4"
std::string bytes_json(const PlanReport& report);  // members "weight_bytes" to "frozen_bytes"
std::string collectives_json(const std::vector<CollectiveRow>& rows);

}  // namespace octet
