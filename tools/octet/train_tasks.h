// eval.tasks of octet train: tasks on the weights in training (TrainHooks::open_tasks).
#pragma once

#include <memory>

#include "train/sequence_scores.h"

namespace octet {

// Reads the documents and makes the prompts. Throws what is wrong with tasks and files; kUnsupported naming tasks that
// generate text.
std::unique_ptr<TaskEvaluation> open_training_tasks(const RunConfig& config, const TaskPlace& place);

}  // namespace octet
