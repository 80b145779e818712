// Time that FP8 saves or costs a training step in each group of linears with one input: the timings of a Target by
// which recipe auto decides (docs/numerics.md).
//
// Times compiled steps of a small model on the device: all linears in bf16, then one group at a time in FP8. The
// difference is that group's, with all its costs: GEMMs, amaxes, codes and their transposes, biases, weights, codes
// recomputed for backward.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/executor.h"

namespace octet {

struct LayerShape {
  int64_t tokens = 0, width = 0;
  int64_t layers = 3;  // of the timed model; the seconds are per layer
  bool gated = false;  // layers of llama, else of gpt2
};

// Timings in bf16, fp8-tensor and fp8-block for every group of one layer whose shape is not in `known`.
std::vector<LinearTiming> time_layer(const LayerShape& layer, const Target& target,
                                     const std::vector<LinearTiming>& known);

}  // namespace octet
