// Comparisons of a resumed run's settings with the checkpoint's record, before anything is compiled.
#pragma once

#include <string>

#include "model/model.h"
#include "train/checkpoint.h"
#include "train/run_config.h"

namespace octet {

// newest_sound_checkpoint(out); where none is sound, its error lists the alternatives.
std::optional<std::string> checkpoint_to_resume(const std::string& out);

// Throws kInvalidArgument, with the ways on, when `folder` was trained on other data than `data` and `data_checksum`;
// a warning where its record has no checksum.
void check_same_data(const RunState& kept, const std::string& folder, const std::string& data,
                     const std::string& data_checksum);

// Throws kInvalidArgument naming each setting in which the sizes of the folder's model are not those of `model`.
void check_same_sizes(const ModelConfig& model, const std::string& folder);

// Throws kInvalidArgument, with both values and the ways on, when the folder's moments are not those of the run's
// optimiser.
void check_same_optimizer(const RunState& kept, const std::string& folder, const RunConfig& config);

// "precision.recipe fp8-current -> bf16, optimizer.lr 0.001 -> 0.002": settings of the run against those of the record.
std::string changed_settings(const RunState& kept, const std::string& folder, const RunConfig& config);

}  // namespace octet
