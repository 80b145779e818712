#include "train/disk_space.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "exec/logical_states.h"
#include "train/checkpoint.h"

namespace octet {
namespace {

constexpr int64_t kSmallFiles = 1 << 20;  // config.json, run.json, manifest, index
constexpr int64_t kHeaderBytes = 512;     // of a tensor in a safetensors header

int64_t folder_bytes(const std::string& folder) {
  std::error_code ignored;
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, ignored))
    if (entry.is_regular_file(ignored)) bytes += static_cast<int64_t>(entry.file_size(ignored));
  return bytes;
}

int64_t next_multiple(int64_t after, int64_t interval, int64_t last) {
  return interval > 0 && interval <= last - after ? std::min((after / interval + 1) * interval, last) : last;
}

// Steps at which something may be written, until there are `enough`.
int64_t saves(const RunConfig& c, int64_t first_step, int64_t enough) {
  const bool best = c.checkpoint_best && !c.validation_data.empty();
  int64_t count = 0;
  for (int64_t step = first_step; step < c.steps && count < enough; ++count)
    step = std::min(next_multiple(step, c.checkpoint_interval, c.steps),
                    best ? next_multiple(step, c.eval_interval, c.steps) : c.steps);
  return count;
}

}  // namespace

std::optional<int64_t> free_disk_bytes(const std::string& path) {
  struct statvfs disk {};
  const std::string parent = parent_folder(path);
  if (!path_exists(path) && parent != path) return free_disk_bytes(parent);
  if (statvfs(path.c_str(), &disk) != 0 || disk.f_blocks == 0) return std::nullopt;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

void check_writable(const std::string& path) {
  std::string there = path;
  while (!path_exists(there) && parent_folder(there) != there) there = parent_folder(there);
  if (access(there.c_str(), W_OK) == 0) return;
  const int error = errno;
  const char* way_out = error == EROFS ? "put out= on another disk, or mount this one writable"
                                       : "put out= elsewhere, or ask for the right to write there";
  fail(ErrorCode::kIo, "{}: {} cannot be written: {}: {}", path, there, std::strerror(error), way_out);
}

int64_t checkpoint_bytes(const RunConfig& config, const Program& program) {
  const CheckpointContent content = checkpoint_content(config);
  int64_t bytes = kSmallFiles;
  for (const LogicalState& tensor : logical_states(program)) {
    const bool param = tensor.role == StateRole::kMaster, moment = tensor.role == StateRole::kMoment;
    if (!param && !(moment && content.moments) && !is_scale(tensor.role)) continue;
    const int64_t width = dtype_bytes(param ? content.weights : tensor.type.dtype);
    bytes += tensor.type.shape.elements() * width + kHeaderBytes;
  }
  return bytes;
}

DiskUse checkpoint_disk_use(const RunConfig& config, const Program& program, const RunState& from) {
  const int64_t one = checkpoint_bytes(config, program);
  int64_t there = 0, there_bytes = 0;  // earlier ones give way to later ones
  for (const std::string& folder : list_checkpoints(config.out, from.lineage)) {
    if (checkpoint_step(folder) > from.step) continue;
    ++there;
    there_bytes += folder_bytes(folder);
  }
  const int64_t most = config.checkpoint_keep + (config.validation_data.empty() ? 0 : 1) + 1;
  const int64_t written = saves(config, from.step, most);
  const int64_t folders = std::min(there + written, std::max(most, there + 1));
  if (written == 0) return {};
  return {.bytes = std::max(one, folders * one - there_bytes), .folders = folders};
}

namespace {

// The largest checkpoint.keep below the current one that fits; 0 when even one does not.
int64_t largest_keep(RunConfig config, const Program& program, const RunState& from, int64_t free) {
  int64_t fits = 0, too_many = config.checkpoint_keep;
  while (too_many - fits > 1) {
    const int64_t middle = config.checkpoint_keep = fits + (too_many - fits) / 2;
    (checkpoint_disk_use(config, program, from).bytes <= free ? fits : too_many) = middle;
  }
  return fits;
}

}  // namespace

void check_disk_space(const RunConfig& config, const Program& program, const RunState& from, int64_t free) {
  const DiskUse use = checkpoint_disk_use(config, program, from);
  for (const std::string& folder : unfinished_checkpoints(config.out)) free += folder_bytes(folder);  // they will go
  if (use.bytes <= free) return;
  std::string fitting;
  const auto try_out = [&](const std::string& words, const auto& change) {
    RunConfig changed = config;
    change(changed);
    const DiskUse less = checkpoint_disk_use(changed, program, from);
    if (less.bytes <= free)
      fitting += fmt::format("{}{} needs {} bytes", fitting.empty() ? "" : "; ", words, less.bytes);
  };
  if (const int64_t keep = largest_keep(config, program, from, free); keep > 0)
    try_out(fmt::format("checkpoint.keep={}", keep), [&](RunConfig& c) { c.checkpoint_keep = keep; });
  try_out("checkpoint.interval=0 with checkpoint.best=false (one at the end)",
          [](RunConfig& c) { c.checkpoint_interval = 0, c.checkpoint_best = false; });
  for (const char* content : {"weights", "weights-bf16"}) {
    if (config.checkpoint_content != content)
      try_out(fmt::format("checkpoint.content={}", content), [&](RunConfig& c) { c.checkpoint_content = content; });
  }
  RunConfig least = config;
  least.checkpoint_content = "weights-bf16", least.checkpoint_interval = 0, least.checkpoint_best = false;
  const int64_t least_bytes = checkpoint_disk_use(least, program, from).bytes;
  const std::string together =
      fmt::format("checkpoint.content=weights-bf16 with checkpoint.interval=0 and checkpoint.best=false needs {} bytes",
                  least_bytes);
  if (fitting.empty()) fitting = least_bytes <= free ? together : "";
  fail(ErrorCode::kIo,
       "{}: the checkpoints of this run take {} bytes at their most ({} at once, {} bytes each) and the disk has {} "
       "free: "
       "{} bytes are missing; {}",
       config.out, use.bytes, use.folders, checkpoint_bytes(config, program), free, use.bytes - free,
       fitting.empty() ? fmt::format("free space or put out= elsewhere: even {}", together)
                       : "of the settings that need less: " + fitting);
}

}  // namespace octet
