// `octet verify --training FILE.safetensors`: replays a file of one training run of any workload: inputs, weights
// (w.NAME), logits, gradients of the first step (grad.NAME), losses of all steps and the weights behind them
// (afterN.NAME). Its metadata key `about` is JSON: model, config, optimizer, steps.
#pragma once

#include <string>
#include <vector>

#include "passes/pass.h"

namespace octet {

// Largest absolute errors.
struct GoldenTolerance {
  double logits = 2e-4, gradients = 1e-4, losses = 1e-4, weights = 1e-4;
};
GoldenTolerance golden_tolerance(const Recipe& recipe);

struct GoldenReport {
  std::string model;
  std::vector<double> losses, expected_losses;
  int64_t logits = 0;  // compared
  double max_logit_error = 0, max_gradient_error = 0, max_loss_error = 0, max_weight_error = 0;
  std::string worst_gradient, worst_weight;  // tensors
  bool passed(const GoldenTolerance& t) const {
    return max_logit_error <= t.logits && max_gradient_error <= t.gradients && max_loss_error <= t.losses &&
           max_weight_error <= t.weights;
  }
};

// Throws kUnsupported for a model that no opener of verify_golden.cc knows, kCorrupt where the file lacks a tensor.
GoldenReport verify_golden(const std::string& path, const CompileOptions& options);

}  // namespace octet
