// The training Program before any pass: "train" (loss of one micro-batch), "eval", and "apply" (optimizer.h).
#pragma once

#include "ir/program.h"
#include "model/model.h"
#include "train/optimizer.h"

namespace octet {

// Of any graphs of a loss: an output "loss" (f32[1], the sum over what counts), inputs by the batches' names.
Program training_program(Graph train, Graph eval, const OptimizerConfig& optimizer);

// Of a language model.
Program training_program(const ModelSpec& model, const BatchShape& train, const BatchShape& eval,
                         const OptimizerConfig& optimizer);

// Attention of "train" may drop by masks of the device's library instead of the IR's (attr library_mask).
void allow_library_masks(Program& program);

// The loss of one micro-batch of this shape, alone: what "train" and "eval" are made of.
Graph loss_graph(GraphRole role, const ModelSpec& model, const BatchShape& shape);

}  // namespace octet
