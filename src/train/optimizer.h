// The optimisers a run can choose, and the graph "apply" that they make: clipping, then an update of every parameter.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "ir/program.h"

namespace octet {

inline constexpr double kDefaultMinLr = -1;

struct OptimizerConfig {
  std::string name = "adamw";  // one of optimizer_names()
  double lr = 6e-4;
  double min_lr = kDefaultMinLr;  // 0 or more; kDefaultMinLr = 6e-5, at most lr
  int64_t warmup_steps = 100;
  int64_t decay_steps = 0;  // 0 = train.steps
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double momentum = 0.9;  // sgd
  bool nesterov = false;
  double weight_decay = 0.1;  // on parameters of rank >= 2
  double clip = 1.0;          // global gradient norm; 0 = off
  // Parameter groups, by patterns of names (fnmatch): "PATTERN=FACTOR" multiplies the learning rate, the first pattern
  // that matches counts; no_decay takes the decay from matrices.
  std::vector<std::string> lr_factors, no_decay;
};

std::vector<std::string> optimizer_names();

// Throws kInvalidArgument naming the setting that is malformed or in conflict with another.
void validate(const OptimizerConfig& config);

// How many moments a parameter has, and the state (also the tensor of a checkpoint) that holds one of them:
// "adam_m.embed.weight".
size_t moment_count(const OptimizerConfig& config);
std::string moment_name(const OptimizerConfig& config, size_t index, const std::string& param);

// "apply" of the parameters that `train` reads; adds them, their gradients and moments to the program's states. Inputs
// lr and step (f32[1], step from 1); outputs loss (of all micro-batches, their sum), grad_norm (before clipping) and
// finite (1 or 0: 0 means the step was skipped on the device). Throws kInvalidArgument when a pattern matches no
// parameter.
Graph apply_graph(const Graph& train, const OptimizerConfig& config, Program& program);

// Learning rate: linear warm-up, then cosine down to min_lr, then flat.

// `step` counts from 1. As nanoGPT: (step) / (warmup + 1) during warm-up.
inline double learning_rate(const OptimizerConfig& o, int64_t total_steps, int64_t step) {
  int64_t iteration = step - 1, end = o.decay_steps > 0 ? o.decay_steps : total_steps;
  const double least = o.min_lr == kDefaultMinLr ? std::min(6e-5, o.lr) : o.min_lr;
  if (iteration < o.warmup_steps)
    return o.lr * static_cast<double>(iteration + 1) / static_cast<double>(o.warmup_steps + 1);
  if (iteration >= end) return least;
  double progress =
      static_cast<double>(iteration - o.warmup_steps) / static_cast<double>(std::max<int64_t>(1, end - o.warmup_steps));
  return least + 0.5 * (1 + std::cos(std::numbers::pi * progress)) * (o.lr - least);
}

}  // namespace octet
