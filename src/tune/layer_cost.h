// What a layer costs on a rank, from one compiled plan of two of them: estimates of step and memory of any layout of
// the same tensor and context ranks, micro-batch and recipe, without compiling more. By them layouts are sorted before
// they are planned; they decide nothing that is printed.
#pragma once

#include <array>
#include <map>

#include "ir/target.h"
#include "tune/run_layout.h"

namespace octet {

struct LayerCost {
  int64_t layers = 0;                                               // of the model
  double forward = 0, backward = 0, attention = 0, recomputed = 0;  // seconds of a layer; attention: of its forward
  double ends = 0;                                                  // embedding and head
  int64_t kept = 0, border = 0;                                // bytes that a layer keeps of a micro-batch; its input
  int64_t weights = 0, codes = 0, moments = 0, gradients = 0;  // bytes of a layer's states
  int64_t end_states = 0;                                      // of embedding and head
  int64_t parameters = 0;                                      // of a layer, of this rank
};

// Of layouts with this one's tensor, context, sequence, micro_batch and recipe. Throws what planning throws.
LayerCost layer_cost(const RunConfig& config, const RunLayout& layout, const Target& target);

// Of a micro-batch between those of two costs, whose share is 0 and 1.
LayerCost between(const LayerCost& a, const LayerCost& b, double share);

struct Estimate {
  double seconds = 0;
  int64_t bytes = 0;  // no more than the fullest rank has, but for rounding
};

class Estimator {
 public:
  Estimator(int64_t global_batch, const Target& target) : global_batch_(global_batch), target_(target) {}
  Estimate operator()(const LayerCost& cost, const RunLayout& layout);

 private:
  struct Step {
    double part = 0, further = 0;  // of the first micro-batches, and of each other one
  };
  double step_layers(int64_t layers, double ends, const RunLayout& layout, int64_t micro_batches);

  int64_t global_batch_;
  const Target& target_;
  std::map<std::array<int64_t, 4>, Step> steps_;
};

}  // namespace octet
