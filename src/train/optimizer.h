// The optimisers a run can choose, and the graph "apply" that they make: clipping, then an update of every parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/program.h"

namespace octet {

inline constexpr double kDefaultMinLr = -1;
inline constexpr int64_t kWarmupEnd = -1;  // of OptimizerConfig::decay_from

struct OptimizerConfig {
  std::string name = "adamw";  // one of optimizer_names()
  double lr = 6e-4;
  double min_lr = kDefaultMinLr;  // 0 or more; kDefaultMinLr = 6e-5, at most lr, of the cosine, 0 of others
  // The schedule (train/schedule.h); steps count from 0.
  int64_t warmup_steps = 100;  // the step where the line of the warm-up reaches lr
  int64_t decay_steps = 0;     // the step where a decay ends: 0 = train.steps
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double momentum = 0.9;  // sgd, lars
  bool nesterov = false;
  double weight_decay = 0.1;  // on parameters of rank >= 2
  double clip = 1.0;          // global gradient norm; 0 = off
  // Parameter groups, by patterns of names (fnmatch): "PATTERN=FACTOR" multiplies the learning rate, the first pattern
  // that matches counts; no_decay takes the decay from matrices.
  std::vector<std::string> lr_factors, no_decay;
  // lamb, lars: parameters whose rate takes no trust ratio; empty: those without weight decay; "none": every one does.
  std::vector<std::string> no_trust = {};
  double trust_coefficient = 0.001;  // lars
  // adamw, sgd: tables, by patterns of names, whose gradient is the rows that a step looks up (Update::kRows).
  std::vector<std::string> sparse = {};
  // The schedule's further settings.
  std::string schedule = "cosine";         // one of schedule_names()
  int64_t warmup_from = -1;                // the step, below 0, where the line of the warm-up is 0
  int64_t decay_from = kWarmupEnd;         // the step where the decay begins, before or behind the end of the warm-up
  double decay_power = 1;                  // polynomial
  double decay_factor = 0.1;               // steps, exponential
  std::vector<std::string> decay_at = {};  // steps
  int64_t decay_every = 0;                 // exponential; 0 = the steps of an epoch
};

std::vector<std::string> optimizer_names();

// Throws kInvalidArgument naming the setting that is malformed or in conflict with another.
void validate(const OptimizerConfig& config);

// How many moments a parameter has, and the state (also the tensor of a checkpoint) that holds one of them:
// "adam_m.embed.weight".
size_t moment_count(const OptimizerConfig& config);
std::string moment_name(const OptimizerConfig& config, size_t index, const std::string& param);

// Gives the tables of OptimizerConfig::sparse their attribute. Throws kInvalidArgument where a pattern matches no
// parameter that is trained, or one that is no table.
void mark_sparse(Graph& graph, const OptimizerConfig& config);

// "apply" of the parameters that `train` reads; adds them, their gradients and moments to the program's states. Inputs
// lr and step (f32[1], step from 1); `micro_batches` of all ranks in a step; outputs loss (of all micro-batches, their
// sum), likewise every other output f32[1] of `train`, grad_norm (before clipping) and finite (1 or 0: 0 means the step
// was skipped on the device). Statistics of `train` (Builder::blend) are blended. Throws kInvalidArgument when a
// pattern matches no parameter.
Graph apply_graph(const Graph& train, const OptimizerConfig& config, Program& program, int64_t micro_batches = 1);

}  // namespace octet
