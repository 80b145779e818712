// `octet verify --training`: replays expected_training.json (AdamW on a fixed step's batches; its lr, betas, eps,
// weight_decay and clip, else those of the goldens) and compares losses, gradient
// norms and, where expected_grads_step0.safetensors is present, every gradient of the first step.
#pragma once

#include <string>
#include <vector>

#include "passes/pass.h"

namespace octet {

// Largest relative errors a recipe's roundings may make in losses, and in gradient norms and gradients.
struct TrainingTolerance {
  double losses = 1e-4, gradients = 1e-4;
};
TrainingTolerance training_tolerance(const Recipe& recipe);

struct TrainingReport {
  std::vector<double> losses, expected_losses;
  std::vector<double> grad_norms, expected_grad_norms;
  double max_loss_error = 0;       // relative
  double max_grad_norm_error = 0;  // relative
  bool has_gradients = false;
  double max_gradient_error = 0;  // largest over tensors of |ours - theirs| / |theirs| (2-norms)
  std::string worst_gradient;
  // Of objective dpo: rewards, margins, accuracies and the reference's log-probabilities; relative above 1.
  double max_metric_error = 0;
  std::string worst_metric;
  bool eager_reference = false;  // as in VerifyReport (eval/verify.h)
  bool passed(const TrainingTolerance& tolerance) const {
    return max_loss_error <= tolerance.losses && max_grad_norm_error <= tolerance.gradients &&
           max_gradient_error <= tolerance.gradients && max_metric_error <= tolerance.losses;
  }
};

// The folder itself, or the relative one that `base` of its expected_training.json names.
std::string trained_model(const std::string& folder);

// Of a model's folder, of one whose expected_training.json names a model by `base`, or of an adapter's, which is
// trained on the frozen base (`base`: "" as the folder says). Batches are input_ids of expected.safetensors or, under
// objective sft, `micro_batches` of `examples`; under dpo `pairs`, whose reference is the model without the adapter.
// `interpret`: by the interpreter instead of the Target's executor.
TrainingReport verify_training(const std::string& folder, const CompileOptions& options, bool interpret = false,
                               const std::string& base = {});

// ReLU inputs of the first step's forward pass whose sign differs between the Target's float32 sums and the
// interpreter's exact ones: each passes a gradient that the expected run blocked, or the reverse, whatever the
// tolerance. As text with the values; "" if there are none.
std::string relu_inputs_on_other_sides(const std::string& folder, const CompileOptions& options);

}  // namespace octet
