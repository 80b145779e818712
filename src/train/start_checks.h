// Checks before the first step: a resumed run's settings against the checkpoint's record, the folder of model.from, the
// disk, the recipe.
#pragma once

#include <optional>
#include <string>

#include "dist/communicator.h"
#include "io/corpus.h"
#include "ir/program.h"
#include "ir/target.h"
#include "model/model.h"
#include "precision/recipe.h"
#include "train/checkpoint.h"
#include "train/run_config.h"
#include "train/workload.h"

namespace octet {

// newest_sound_checkpoint(out); where none is sound, its error lists the alternatives.
std::optional<std::string> checkpoint_to_resume(const std::string& out);

// Throws kInvalidArgument, with the ways on, when `folder` was trained on other data or frozen weights; a warning where
// its record has no checksum.
void check_same_data(const RunState& kept, const std::string& folder, const DataRecord& data);

// Throws kInvalidArgument naming each setting in which the sizes of the folder's model are not those of `model`.
void check_same_sizes(const ModelConfig& model, const std::string& folder);

// Throws kInvalidArgument, with both values and the ways on, when the folder's moments are not those of the run's
// optimiser.
void check_same_optimizer(const RunState& kept, const std::string& folder, const RunConfig& config);

// "precision.recipe fp8-current -> bf16, optimizer.lr 0.001 -> 0.002": settings of the run against those of the record.
std::string changed_settings(const RunState& kept, const std::string& folder, const RunConfig& config);

// What is to be said where the run's settings give the steps from here on another learning rate than the record's: both
// rates, and the way to keep the schedule. "" where they give the same.
std::string changed_rate(const RunState& kept, const std::string& folder, const RunConfig& config);

// What a folder named by model.from must be before a run begins with its weights: whole, and of the data's vocabulary.

// Sizes and checksums by the folder's manifest, where it has one, of the files that such a run reads. Throws kCorrupt.
void check_whole(const std::string& folder);

// The folder's tokenizer against that of the set `prefix`, described by `data`. Ids that stand for other bytes throw
// kInvalidArgument with the first of them; a warning where ids agree but texts may be split otherwise. A folder without
// a tokenizer passes.
void check_vocabulary(const std::string& folder, const std::string& prefix, const DatasetInfo& data);

// Checks before the first step: whether the disk is writable and large enough for the checkpoints of a run.

// Bytes free for this user where `path` is or will be; nothing where the file system does not say.
std::optional<int64_t> free_disk_bytes(const std::string& path);

// Of one checkpoint by config.checkpoint_content, without tokenizer.
int64_t checkpoint_bytes(const RunConfig& config, const Program& program);

// The peak disk use of a run that resumes at `from`, beyond what `out` holds now: `folders` checkpoints, which are
// those kept, the best, and one being written. Only checkpoints of the run's lineage are pruned.
struct DiskUse {
  int64_t bytes = 0, folders = 0;
};
DiskUse checkpoint_disk_use(const RunConfig& config, const Program& program, const RunState& from);

// Throws kIo where `path`, or the nearest folder above it that exists, cannot be written: a file system that is
// read-only, a folder of others.
void check_writable(const std::string& path);

// All ranks call it together. Throws kNotFound on all, naming a rank and its host, when it does not see the `folder`
// that the first one has, which is made where it is not there.
void check_shared(Communicator& ranks, const std::string& folder);

// Throws kIo with the bytes wanted and free and the settings that need less.
void check_disk_space(const RunConfig& config, const Program& program, const RunState& from, int64_t free);

// Recipes that a device runs, but not quickly.

// The note for an FP8 recipe on a CPU without tiles (has_bf16_tiles), with the faster setting; else "".
inline std::string slow_recipe_note(const Recipe& recipe, Device device, bool has_tiles) {
  if (device != Device::kCpu || has_tiles || recipe.scaling == Scaling::kNone) return "";
  return "no AMX-BF16 here, on which FP8 codes are multiplied: recipe " + recipe.name +
         " trains 2 to 3 times slower than bf16 on such cores; precision.recipe=bf16 chooses that";
}

}  // namespace octet
