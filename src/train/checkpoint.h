// Checkpoints: OUT/checkpoints/step_00001000/, each model*.safetensors of float32 masters and what the workload puts
// beside them (of a language model a Hugging Face folder: config.json, tokenizer), optimizer*.safetensors (moments),
// scales.safetensors (FP8 scales and histories), statistics*.safetensors (running statistics, of a model that has some)
// and run.json. checkpoint.content leaves the moments out, and may round the weights to bf16: a folder to use, not to
// go on from.
//
// A folder appears under its name only when complete: written beside, checksummed in manifest.json, renamed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "train/run_config.h"
#include "train/workload.h"

namespace octet {

struct RunState {
  int64_t step = 0;           // optimiser steps done
  int64_t targets = 0;        // trained on; "tokens" in run.json
  int64_t skipped_steps = 0;  // of them, that were no update: gradients not finite, or no targets
  double best_metric = 0;     // of evaluations of `validation`, when best_step > 0; "best_loss" in run.json
  int64_t best_step = 0;
  std::string validation;     // the validation set, and how it is cut: metrics of another do not compare; "" unknown
  std::string settings;       // YAML of the run's settings
  std::string precision;      // recipe auto: PrecisionPolicy::state(); "" otherwise
  std::string data;           // sizes and order of the data: a resume on other data is refused
  std::string data_checksum;  // of its contents; "" unknown
  std::string frozen;         // fingerprints of models that the run reads and does not train; "" none or unknown
  std::string lineage;        // drawn when a run begins, taken over by those that go on from it; "" unknown
};

struct CheckpointContent {
  RunState run;
  DType weights = DType::kF32;
  bool moments = true;  // a run goes on from it
  int64_t shard_bytes = 4'000'000'000;
};
// What a run's settings ask for.
CheckpointContent checkpoint_content(const RunConfig& config);

std::string checkpoint_folder(const std::string& out, int64_t step);
int64_t checkpoint_step(const std::string& folder);  // of its name; -1 for others

// Returns the folder. All ranks of a mesh call it together, with one `out` that all see: each writes the tensor files
// it owns, the first the rest. Throws, on all ranks the same, with the previous checkpoints untouched and nothing left
// of this one.
std::string write_checkpoint(const std::string& out, Executor& executor, const TrainingWorkload& workload,
                             const CheckpointContent& content);

// Newest first; only finished folders.
std::vector<std::string> list_checkpoints(const std::string& out);

// Of these the ones whose record names this lineage. A record that cannot be read names none.
std::vector<std::string> list_checkpoints(const std::string& out, const std::string& lineage);

// The newest checkpoint whose manifest holds; logs a warning for each broken one it passes over. Nothing where there is
// no checkpoint; kCorrupt, with what is wrong with each, where none is sound.
std::optional<std::string> newest_sound_checkpoint(const std::string& out);

// What run.json of a checkpoint holds.
RunState read_run_state(const std::string& folder);

// Folders that writers who were killed left behind, OUT/checkpoints/*.tmp.
std::vector<std::string> unfinished_checkpoints(const std::string& out);

// Throws kInvalidArgument, with the ways on, when the folder holds weights alone.
void check_resumable(const std::string& folder);

// Fills the saved states (is_saved) from a folder whose manifest holds (verify_folder), then prepares; `loaded` gets
// the bytes of each. Throws kInvalidArgument, naming file and tensor, when the run's settings want other ones.
void read_checkpoint(const std::string& folder, Executor& executor, const TrainingWorkload& workload,
                     const BytesLoaded& loaded = {});

// Whether a program has states of role kStatistic; from the folder of a checkpoint, kInvalidArgument where it lacks
// one.
bool has_statistics(const Program& program);
void read_statistics(const std::string& folder, Executor& executor, const BytesLoaded& loaded = {});

// Moves the checkpoints after `step` out of the way, to OUT/set_aside_<n>: a run that begins there must not find them,
// write over them or count them among its own, now or when it continues. Returns that folder, "" when there was nothing
// to move.
std::string set_aside_checkpoints(const std::string& out, int64_t step);

// Removes, of one lineage, all but the last `keep` checkpoints, the best one, and the newest that a run can go on from.
void prune_checkpoints(const std::string& out, int64_t keep, int64_t best_step, const std::string& lineage);

}  // namespace octet
