// The learning rate of a step: a warm-up along a line, then one of a table of decays. Steps of the settings count from
// 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/optimizer.h"

namespace octet {

std::vector<std::string> schedule_names();

// Throws kInvalidArgument naming the setting that is malformed, or that the schedule does not read.
void validate_schedule(const OptimizerConfig& config);

// The first step, from 0, of the decay, and the one where it is at the least rate; kNever where it does not end so.
inline constexpr int64_t kNever = INT64_MAX;
int64_t decay_begin(const OptimizerConfig& config);
int64_t decay_end(const OptimizerConfig& config, int64_t total_steps);

// `step` counts from 1. With the defaults as nanoGPT: lr step / (warmup + 1), then a cosine down to min_lr, then flat.
double learning_rate(const OptimizerConfig& config, int64_t total_steps, int64_t step);

}  // namespace octet
