// Checks before the first step: whether the disk is writable and large enough for the checkpoints of a run.
#pragma once

#include <optional>
#include <string>

#include "ir/program.h"
#include "train/checkpoint.h"
#include "train/run_config.h"

namespace octet {

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

// Throws kIo with the bytes wanted and free and the settings that need less.
void check_disk_space(const RunConfig& config, const Program& program, const RunState& from, int64_t free);

}  // namespace octet
