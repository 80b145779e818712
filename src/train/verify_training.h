// `octet verify --training`: replays expected_training.json (AdamW on one fixed batch) and compares losses, gradient
// norms and, where expected_grads_step0.safetensors is present, every gradient of the first step.
#pragma once

#include <string>
#include <vector>

#include "passes/pass.h"

namespace octet {

struct TrainingReport {
  std::vector<double> losses, expected_losses;
  std::vector<double> grad_norms, expected_grad_norms;
  double max_loss_error = 0;       // relative
  double max_grad_norm_error = 0;  // relative
  bool has_gradients = false;
  double max_gradient_error = 0;  // largest over tensors of |ours - theirs| / |theirs| (2-norms)
  std::string worst_gradient;
  bool eager_reference = false;  // as in VerifyReport (infer/verify.h)
  bool passed(double tolerance) const {
    return max_loss_error <= tolerance && max_grad_norm_error <= tolerance && max_gradient_error <= tolerance;
  }
};

// `interpret`: by the interpreter instead of the Target's executor.
TrainingReport verify_training(const std::string& folder, const CompileOptions& options, bool interpret = false);

}  // namespace octet
