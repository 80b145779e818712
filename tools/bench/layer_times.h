// What FP8 saves or costs a training step in each group of linears that read one x: the rows of a Target by which
// recipe auto decides (docs/numerics.md).
//
// Whole steps of a small model are timed, as the passes make them and the device runs them: all linears in bf16, and
// one group at a time in FP8. The difference is the group's, whatever it is made of: products, amaxes, codes and their
// transposes, biases, weights, codes made again for backward.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/executor.h"

namespace octet {

struct LayerShape {
  int64_t tokens = 0, width = 0;
  int64_t layers = 3;  // of the model: the seconds are those of one
  bool gated = false;  // llama's layers, else gpt2's
};

// In precisions bf16, fp8-tensor and fp8-block, of every group of one layer whose shape `known` does not hold.
std::vector<LinearTiming> time_layer(const LayerShape& layer, const Target& target,
                                     const std::vector<LinearTiming>& known);

}  // namespace octet
