#include "train/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "dist/communicator.h"
#include "exec/logical_states.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "train/tensor_files.h"

namespace octet {
namespace {

constexpr const char* kStepPrefix = "step_";
constexpr const char *kOptimizer = "optimizer", *kStatistics = "statistics";

bool is_moment(StateRole role) { return role == StateRole::kMoment; }
bool is_statistic(StateRole role) { return role == StateRole::kStatistic; }

void read_states(Executor& executor, bool (*wanted)(StateRole role), const std::string& folder, const std::string& stem,
                 const BytesLoaded& loaded) {
  const std::unique_ptr<TensorSource> file = open_safetensors(folder, stem);
  for (const LogicalState& entry : logical_states(executor.program())) {
    if (!wanted(entry.role)) continue;
    const TensorType* type = file->find_type(entry.name);
    const std::string found = type == nullptr ? "is not in it" : "is " + to_string(*type);
    check(
        type != nullptr && *type == entry.type, ErrorCode::kInvalidArgument,
        "{}/{}: {} {}, this run's precision.recipe and precision.amax_history want {}: set those of the checkpoint, or "
        "start a new run from its weights with model.from={} and another out=",
        folder, stem, entry.name, found, to_string(entry.type), folder);
    write_logical(executor, entry, file->read(entry.name).bytes);
    if (loaded) loaded(entry.type.bytes());
  }
}

std::string run_json(const RunState& run) {
  return nlohmann::json{{"step", run.step},
                        {"tokens", run.targets},
                        {"skipped_steps", run.skipped_steps},
                        {"best_loss", run.best_metric},
                        {"best_step", run.best_step},
                        {"validation", run.validation},
                        {"settings", run.settings},
                        {"precision", run.precision},
                        {"data", run.data},
                        {"data_checksum", run.data_checksum},
                        {"frozen", run.frozen},
                        {"lineage", run.lineage}}
             .dump(2) +
         "\n";
}

RunState parse_run_json(const std::string& path) {
  nlohmann::json json = parse_json(read_file(path, 1 << 24), path);
  const auto text_or_none = [&](const char* key) {
    return json.contains(key) ? json_get<std::string>(json, key, path) : "";
  };
  return {.step = json_get<int64_t>(json, "step", path),
          .targets = json_get<int64_t>(json, "tokens", path),
          .skipped_steps = json_get<int64_t>(json, "skipped_steps", path),
          .best_metric = json_get<double>(json, "best_loss", path),
          .best_step = json_get<int64_t>(json, "best_step", path),
          .validation = text_or_none("validation"),
          .settings = json_get<std::string>(json, "settings", path),
          .precision = text_or_none("precision"),
          .data = json_get<std::string>(json, "data", path),
          .data_checksum = text_or_none("data_checksum"),
          .frozen = text_or_none("frozen"),
          .lineage = text_or_none("lineage")};
}

// step_00001000 -> 1000; -1 for other names.
int64_t parse_step(const std::string& name) {
  std::string digits = name.starts_with(kStepPrefix) ? name.substr(5) : "";
  bool all_digits = !digits.empty() && digits.size() <= 18 &&
                    std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  return all_digits ? std::stoll(digits) : -1;
}

bool is_resumable(const std::string& folder) {
  return path_exists(folder + "/optimizer.safetensors") || path_exists(folder + "/optimizer.safetensors.index.json");
}

}  // namespace

std::string checkpoint_folder(const std::string& out, int64_t step) {
  return fmt::format("{}/checkpoints/{}{:08d}", out, kStepPrefix, step);
}

int64_t checkpoint_step(const std::string& folder) { return parse_step(folder.substr(folder.rfind('/') + 1)); }

CheckpointContent checkpoint_content(const RunConfig& config) {
  return {.weights = config.checkpoint_content == "weights-bf16" ? DType::kBF16 : DType::kF32,
          .moments = config.checkpoint_content == "all",
          .shard_bytes = config.shard_bytes};
}

std::string write_checkpoint(const std::string& out, Executor& executor, const TrainingWorkload& workload,
                             const CheckpointContent& content) {
  Communicator* ranks = executor.ranks();
  const bool first = ranks == nullptr || ranks->rank() == 0;
  std::string folder = checkpoint_folder(out, content.run.step);
  std::optional<FolderWriter> writer;  // of the first rank
  const auto begin = [&]() -> std::string {
    if (!first) return "";
    make_folders(parent_folder(folder));
    return writer.emplace(folder).folder();
  };
  const std::string temporary = do_together(ranks, begin)[0];
  const Program& program = executor.program();
  std::vector<FileSet> sets = {workload.weight_files(program, content.weights, content.shard_bytes),
                               state_files(program, is_scale, "scales", INT64_MAX)};
  if (content.moments) sets.push_back(state_files(program, is_moment, kOptimizer, content.shard_bytes));
  if (has_statistics(program)) sets.push_back(state_files(program, is_statistic, kStatistics, content.shard_bytes));
  const std::vector<ManifestFile> files = write_tensor_files(executor, temporary, sets);
  const auto commit = [&]() -> std::string {
    if (!first) return "";
    for (const FileSet& set : sets) write_index(temporary, set.stem, set.files);
    workload.write_files(temporary, content.weights);
    write_file(writer->file("run.json"), run_json(content.run));
    writer->commit(nlohmann::json{{"step", content.run.step}}.dump(), files);
    return "";
  };
  do_together(ranks, commit);
  return folder;
}

std::vector<std::string> list_checkpoints(const std::string& out) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::string root = out + "/checkpoints";
  if (is_folder(root))
    for (const std::string& name : list_folder(root))
      if (int64_t step = parse_step(name); step >= 0) found.emplace_back(step, root + "/" + name);
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> folders;
  for (auto& [step, folder] : found) folders.push_back(folder);
  return folders;
}

std::vector<std::string> list_checkpoints(const std::string& out, const std::string& lineage) {
  std::vector<std::string> folders = list_checkpoints(out);
  std::erase_if(folders, [&](const std::string& folder) {
    try {
      return read_run_state(folder).lineage != lineage;
    } catch (const Error&) {
      return true;
    }
  });
  return folders;
}

std::optional<std::string> newest_sound_checkpoint(const std::string& out) {
  std::vector<std::string> faults;
  for (const std::string& folder : list_checkpoints(out)) {
    try {
      verify_folder(folder);
    } catch (const Error& error) {
      faults.push_back(error.message());
      continue;
    }
    for (const std::string& fault : faults)
      log_warning("skipping a damaged checkpoint: {}; falling back to the one before it", fault);
    return folder;
  }
  check(faults.empty(), ErrorCode::kCorrupt, "{}: none of {} checkpoints is sound: {}", out, faults.size(),
        fmt::join(faults, "; "));
  return std::nullopt;
}

std::vector<std::string> unfinished_checkpoints(const std::string& out) {
  std::vector<std::string> folders;
  const std::string root = out + "/checkpoints";
  if (is_folder(root))
    for (const std::string& name : list_folder(root))
      if (name.starts_with(kStepPrefix) && name.ends_with(".tmp")) folders.push_back(root + "/" + name);
  return folders;
}

RunState read_run_state(const std::string& folder) { return parse_run_json(folder + "/run.json"); }

void check_resumable(const std::string& folder) {
  if (is_resumable(folder)) return;
  std::string other = "resume=CHECKPOINT";
  for (const std::string& sibling : list_checkpoints(parent_folder(parent_folder(folder)))) {
    if (!is_resumable(sibling)) continue;
    other = fmt::format("resume={}, the newest that can be resumed", sibling);
    break;
  }
  fail(ErrorCode::kInvalidArgument,
       "{} contains only weights (checkpoint.content) and cannot be resumed: start a new run from them with "
       "model.from={} and another out=, or set resume=never or {}",
       folder, folder, other);
}

bool has_statistics(const Program& program) {
  return std::ranges::any_of(program.states(), is_statistic, &StateEntry::role);
}

void read_statistics(const std::string& folder, Executor& executor, const BytesLoaded& loaded) {
  if (has_statistics(executor.program())) read_states(executor, is_statistic, folder, kStatistics, loaded);
}

void read_checkpoint(const std::string& folder, Executor& executor, const TrainingWorkload& workload,
                     const BytesLoaded& loaded) {
  read_states(executor, is_moment, folder, kOptimizer, loaded);
  read_states(executor, is_scale, folder, "scales", loaded);
  read_statistics(folder, executor, loaded);
  workload.load(folder, executor, loaded);  // last: it ends with "prepare"
}

std::string set_aside_checkpoints(const std::string& out, int64_t step) {
  std::string aside;
  for (const std::string& folder : list_checkpoints(out)) {
    const std::string name = folder.substr(folder.rfind('/') + 1);
    if (parse_step(name) <= step) continue;
    for (int64_t n = 1; aside.empty(); ++n) {
      const std::string free = fmt::format("{}/set_aside_{}", out, n);
      if (path_exists(free)) continue;
      make_folders(free);
      aside = free;
    }
    rename_path(folder, aside + "/" + name);
  }
  return aside;
}

void prune_checkpoints(const std::string& out, int64_t keep, int64_t best_step, const std::string& lineage) {
  int64_t kept = 0;
  bool resumable = false;  // a newer one is
  for (const std::string& folder : list_checkpoints(out, lineage)) {
    const bool newest_resumable = !resumable && is_resumable(folder);
    resumable |= newest_resumable;
    if (kept < keep) {
      ++kept;
    } else if (checkpoint_step(folder) != best_step && !newest_resumable) {
      remove_path(folder);
    }
  }
}

}  // namespace octet
