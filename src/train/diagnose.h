// Diagnosis of runs that stop: the source of non-finite numbers, and settings with which a plan would fit.
#pragma once

#include <string>

#include "train/stepper.h"

namespace octet {

// The first value of the forward pass, in the order of execution, that holds a NaN or infinity for this batch, as
// "layers.1.mlp.up (matmul)"; "" when all are finite. Computes the pass again in the recipe's compute type, with every
// value observed, on weights copied from `trained`: memory for both is needed (throws kOutOfMemory).
std::string first_non_finite_value(const TrainingWorkload& workload, const StepperOptions& options, Executor& trained,
                                   const Batch& batch);

// The parameter nearest to the loss, in the model's order the last, whose gradient holds a NaN or infinity: where the
// backward pass met the first one, if the forward pass met none. "" when all are finite.
std::string last_non_finite_gradient(Executor& executor);

// Which changes of settings would make the training plan fit into `available` bytes, in words with the bytes of each
// plan: "recompute=selective needs 12 ... bytes". Tried are smaller micro-batches, recomputation and transposes; of a
// pipeline, whose largest stage counts, also more stages and more tensor ranks.
std::string settings_that_fit(const TrainingWorkload& workload, const RunConfig& config, const Target& target,
                              int64_t available);
std::string none_fits(const RunConfig& config);  // what to say where that is ""

}  // namespace octet
