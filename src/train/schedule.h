// Learning rate: linear warm-up, then cosine down to min_lr, then flat.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "train/run_config.h"

namespace octet {

// `step` counts from 1. As nanoGPT: (step) / (warmup + 1) during warm-up.
inline double learning_rate(const OptimizerConfig& o, int64_t total_steps, int64_t step) {
  int64_t iteration = step - 1, end = o.decay_steps > 0 ? o.decay_steps : total_steps;
  if (iteration < o.warmup_steps)
    return o.lr * static_cast<double>(iteration + 1) / static_cast<double>(o.warmup_steps + 1);
  if (iteration >= end) return o.min_lr;
  double progress =
      static_cast<double>(iteration - o.warmup_steps) / static_cast<double>(std::max<int64_t>(1, end - o.warmup_steps));
  return o.min_lr + 0.5 * (1 + std::cos(std::numbers::pi * progress)) * (o.lr - o.min_lr);
}

}  // namespace octet
