// The training Program before any pass: "train" (loss of one micro-batch), "eval", and "apply" (clip and AdamW).
#pragma once

#include "ir/program.h"
#include "model/model.h"
#include "train/run_config.h"

namespace octet {

// "apply" reads gradients and moments 0 and 1 of every parameter, inputs lr, step (f32[1], step from 1) and has
// outputs loss (of all micro-batches, their sum), grad_norm (before clipping) and finite (1 or 0: 0 means the step was
// skipped on the device).
Program training_program(const ModelSpec& model, const BatchShape& train, const BatchShape& eval,
                         const OptimizerConfig& optimizer);

// Attention of "train" may drop by masks of the device's library instead of the IR's (attr library_mask).
void allow_library_masks(Program& program);

// The loss of one micro-batch of this shape, alone: what "train" and "eval" are made of.
Graph loss_graph(GraphRole role, const ModelSpec& model, const BatchShape& shape);

}  // namespace octet
