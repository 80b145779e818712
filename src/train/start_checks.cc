#include "train/start_checks.h"

#include <fmt/ranges.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "dist/socket.h"
#include "exec/logical_states.h"
#include "io/manifest.h"
#include "io/tokenizer.h"
#include "model/hugging_face.h"
#include "train/checkpoint.h"
#include "train/schedule.h"

namespace octet {

namespace {

// The newest checkpoint that model.from can begin from; "" when there is none.
std::string whole_weights(const std::string& out) {
  for (const std::string& folder : list_checkpoints(out)) {
    try {
      verify_folder(folder, Verify::kChecksums, /*unread=*/{"optimizer.safetensors", "run.json"});
      return folder;
    } catch (const Error&) {  // newest_sound_checkpoint() has said what is wrong
    }
  }
  return "";
}

void add_change(std::string& changes, const std::string& name, const std::string& before, const std::string& now) {
  if (before == now) return;
  const auto shown = [](const std::string& value) { return value.empty() ? "''" : value; };
  changes += fmt::format("{}{} {} -> {}", changes.empty() ? "" : ", ", name, shown(before), shown(now));
}

// Of a checkpoint's record; nothing where this program does not read them.
std::optional<RunConfig> recorded_settings(const RunState& kept, const std::string& folder) {
  RunConfig old;
  try {
    settings_of(old).load_yaml_text(kept.settings, folder + "/run.json");
  } catch (const Error&) {  // changed_settings() says why
    return std::nullopt;
  }
  return old;
}

std::string biases_text(const Biases& biases) { return biases == Biases::all(false) ? "false" : "true"; }

// Null, with a line in the log, where there is none or none that can be read.
std::unique_ptr<Tokenizer> tokenizer_of(const std::string& folder) {
  try {
    return load_tokenizer(folder);
  } catch (const Error& error) {
    log_warning("{}: cannot compare its vocabulary with the data's: {}", folder, error.message());
    return nullptr;
  }
}

// Null if the data set's copy of its tokenizer is missing or has changed.
std::unique_ptr<Tokenizer> tokenizer_of(const DatasetInfo& data) {
  if (!path_exists(data.tokenizer_path)) return nullptr;
  auto tokenizer = load_tokenizer(data.tokenizer_path);
  return tokenizer->fingerprint() == data.tokenizer_fingerprint ? std::move(tokenizer) : nullptr;
}

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

std::optional<std::string> checkpoint_to_resume(const std::string& out) {
  try {
    return newest_sound_checkpoint(out);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    const std::string whole = whole_weights(out);
    fail(error.code(),
         "{}; nothing was changed. Either restore one from a copy; {}start again in another out=, or here with "
         "resume=never, which moves them to {}/set_aside_N; or delete them",
         error.message(),
         whole.empty() ? ""
                       : fmt::format("start a new run from the weights of {}, which are whole, with model.from={} and "
                                     "another out=; ",
                                     whole, whole),
         out);
  }
}

void check_same_data(const RunState& kept, const std::string& folder, const DataRecord& data) {
  check(kept.frozen.empty() || kept.frozen == data.frozen, ErrorCode::kInvalidArgument,
        "{} was trained on other frozen weights: their fingerprints are \"{}\", those of model.from and dpo.reference "
        "\"{}\": set these to the models of {}/config.yaml, or another out= (or resume=never) to start afresh",
        folder, kept.frozen, data.frozen, parent_folder(parent_folder(folder)));
  const std::string ways = fmt::format(
      "set data.* and train.global_batch as in {}/config.yaml, start a new run from its weights with model.from={} "
      "and another out=, or set resume=never (or another out=) to start afresh",
      parent_folder(parent_folder(folder)), folder);
  check(kept.data == data.data, ErrorCode::kInvalidArgument, "{} was trained on \"{}\", this run has \"{}\": {}",
        folder, kept.data, data.data, ways);
  if (kept.data_checksum.empty()) {
    log_warning(
        "{} has no checksum of the data it was trained on: only the numbers of tokens and documents are compared",
        folder);
    return;
  }
  check(kept.data_checksum == data.checksum, ErrorCode::kInvalidArgument,
        "{} was trained on different tokens, though equally many: their checksum was {}, that of data.train is {}: {}",
        folder, kept.data_checksum, data.checksum, ways);
}

void check_same_sizes(const ModelConfig& model, const std::string& folder) {
  const std::string path = folder + "/config.json";
  const ModelConfig before = parse_hugging_face_config(read_file(path), path);
  // As it would be read back: a family's config.json may leave out what it fixes.
  const ModelConfig now = parse_hugging_face_config(to_hugging_face_config(model, {}, "float32"), "config.json");
  std::string changes;
  const auto compare = [&](const char* name, int64_t one, int64_t other) {
    add_change(changes, name, std::to_string(one), std::to_string(other));
  };
  add_change(changes, "model.architecture", before.architecture, now.architecture);
  compare("model.vocab_size", before.vocab_size, now.vocab_size);
  compare("model.max_positions", before.length_limit(), now.length_limit());
  compare("model.hidden", before.hidden, now.hidden);
  compare("model.layers", before.layers, now.layers);
  compare("model.heads", before.heads, now.heads);
  compare("model.kv_heads", before.kv_head_count(), now.kv_head_count());
  compare("model.head_dim", before.head_size(), now.head_size());
  compare("model.intermediate", before.intermediate_size(), now.intermediate_size());
  const auto windows = [](const ModelConfig& config) {  // one where all layers have it
    std::vector<int64_t> all = config.layer_windows();
    if (std::ranges::count(all, all[0]) == config.layers) all.resize(1);
    return fmt::format("{}", fmt::join(all, ","));
  };
  add_change(changes, "model.window", windows(before), windows(now));
  add_change(changes, "model.bias", biases_text(before.bias), biases_text(now.bias));
  check(changes.empty(), ErrorCode::kInvalidArgument,
        "{} is of another model than this run's settings describe: {}; set what the checkpoint has, or begin a new run "
        "with resume=never or another out=",
        folder, changes);
}

void check_same_optimizer(const RunState& kept, const std::string& folder, const RunConfig& config) {
  const std::optional<RunConfig> recorded = recorded_settings(kept, folder);
  if (!recorded) return;
  const RunConfig& old = *recorded;
  const auto moments = [](const OptimizerConfig& optimizer) {
    std::vector<std::string> names;
    for (size_t i = 0; i < moment_count(optimizer); ++i) names.push_back(moment_name(optimizer, i, ""));
    return names;
  };
  if (moments(old.optimizer) == moments(config.optimizer)) return;
  std::string changes;
  add_change(changes, "optimizer.name", old.optimizer.name, config.optimizer.name);
  if (old.optimizer.name == config.optimizer.name)
    add_change(changes, "optimizer.momentum", fmt::format("{}", old.optimizer.momentum),
               fmt::format("{}", config.optimizer.momentum));
  fail(ErrorCode::kInvalidArgument,
       "{} contains the moments of another optimiser: {}; set what the checkpoint has, or start a new run, with fresh "
       "moments, from its weights with model.from={} and another out=",
       folder, changes, folder);
}

std::string changed_settings(const RunState& kept, const std::string& folder, const RunConfig& config) {
  RunConfig old, copy = config;
  SettingsTable before = settings_of(old);
  const SettingsTable now = settings_of(copy);
  try {
    before.load_yaml_text(kept.settings, folder + "/run.json");
  } catch (const Error& error) {
    log_warning("cannot compare the settings with those of {}: {}", folder, error.message());
    return "";
  }
  std::string changes;
  for (const std::string& name : now.names())
    if (name != "resume") add_change(changes, name, before.get(name), now.get(name));
  return changes;
}

std::string changed_rate(const RunState& kept, const std::string& folder, const RunConfig& config) {
  const std::optional<RunConfig> old = recorded_settings(kept, folder);
  if (!old) return "";
  const int64_t ended = decay_end(old->optimizer, old->steps), ends = decay_end(config.optimizer, config.steps);
  const int64_t warm = std::max(decay_begin(old->optimizer), decay_begin(config.optimizer));
  for (const int64_t step : {kept.step + 1, std::max(kept.step, warm) + 2}) {  // decays may differ behind warm-up
    const double before = learning_rate(old->optimizer, old->steps, step),
                 now = learning_rate(config.optimizer, config.steps, step);
    if (before == now || step > config.steps) continue;
    const bool kept_end = ended == ends || old->optimizer.schedule != config.optimizer.schedule;
    const std::string keep = kept_end ? ""
                                      : fmt::format(
                                            ": the {} decay ended at step {} and ends at {} with these settings; "
                                            "optimizer.decay_steps={} keeps it",
                                            config.optimizer.schedule, ended, ends, ended);
    return fmt::format("the learning rate of step {} is {:.4g}, but with the settings of {} it was {:.4g}{}", step, now,
                       folder, before, keep);
  }
  return "";
}

void check_whole(const std::string& folder) {
  if (!has_manifest(folder)) return;
  const LoggedTime time("checksums of model.from");
  try {
    std::set<std::string> unread = {"run.json"};
    for (const ManifestFile& file : read_manifest(folder).files)
      if (file.name.starts_with("optimizer")) unread.insert(file.name);
    verify_folder(folder, Verify::kChecksums, unread);
  } catch (const Error& error) {
    fail(error.code(),
         "model.from: {}; name another checkpoint or copy this one again (if it was changed on purpose, remove "
         "{}/manifest.json)",
         error.message(), folder);
  }
}

void check_vocabulary(const std::string& folder, const std::string& prefix, const DatasetInfo& data) {
  const auto own = tokenizer_of(folder);
  if (own == nullptr || own->fingerprint() == data.tokenizer_fingerprint) return;
  const auto other = tokenizer_of(data);
  int64_t different = other == nullptr ? data.vocab_size : 0;
  std::string first;
  for (int64_t i = 0; other != nullptr && i < std::min(own->vocab_size(), other->vocab_size()); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view here = own->token_bytes(id), there = other->token_bytes(id);
    if (here.empty() || there.empty() || here == there) continue;  // unused in one of them
    if (different++ == 0)
      first = fmt::format("; id {} is {} in the folder, {} in the data", id, json_quote(here), json_quote(there));
  }
  if (different == 0) {
    log_warning(
        "data {} was made with the tokenizer {}, but {} has {}: the ids that both define are the same, but text may be "
        "split differently",
        prefix, data.tokenizer_fingerprint, folder, own->fingerprint());
    return;
  }
  fail(ErrorCode::kInvalidArgument,
       "data {} was made with the tokenizer {}, but {} has {}: their ids differ{}{}; prepare the data again with "
       "`octet data TEXT --tokenizer {} --out PREFIX`",
       prefix, data.tokenizer_fingerprint, folder, own->fingerprint(), first,
       other == nullptr ? fmt::format(" ({}, needed to compare ids, is missing or changed)", data.tokenizer_path)
                        : fmt::format(" ({} of {} differ)", different, other->vocab_size()),
       folder);
}

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
  const char* way_out = error == EROFS ? "set out= to another disk, or mount this one writable"
                                       : "set out= to another folder, or get permission to write there";
  fail(ErrorCode::kIo, "{}: {} cannot be written: {}: {}", path, there, std::strerror(error), way_out);
}

void check_shared(Communicator& ranks, const std::string& folder) {
  const bool first = ranks.rank() == 0;
  const auto put_mark = [&]() -> std::string {
    if (!first) return "";
    std::random_device random;
    const std::string mark = fmt::format("{}/seen_{:08x}", folder, random());
    make_folders(folder);
    write_file(mark, "");
    return mark.substr(folder.size());
  };
  const std::string mark = folder + do_together(&ranks, put_mark)[0];
  const auto look = [&] { return path_exists(mark) ? "" : host_name(); };
  std::vector<std::string> blind;  // their hosts
  try {
    blind = do_together(&ranks, look);
  } catch (...) {  // a rank that has all answers already may refuse while others wait for theirs
    if (first) remove_path(mark);
    throw;
  }
  if (first) remove_path(mark);
  for (size_t rank = 0; rank < blind.size(); ++rank)
    check(blind[rank].empty(), ErrorCode::kNotFound,
          "rank {} of {} on {} does not see the folder {} of rank 0, where all ranks write checkpoints: set out= to a "
          "file system that they share",
          rank, blind.size(), blind[rank], folder);
}

int64_t checkpoint_bytes(const RunConfig& config, const Program& program) {
  const CheckpointContent content = checkpoint_content(config);
  int64_t bytes = kSmallFiles;
  for (const LogicalState& tensor : logical_states(program)) {
    const bool param = tensor.role == StateRole::kMaster, moment = tensor.role == StateRole::kMoment;
    const bool statistic = tensor.role == StateRole::kStatistic;
    if (tensor.update == Update::kNone ||
        (!param && !(moment && content.moments) && !is_scale(tensor.role) && !statistic))
      continue;
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
       "{}: the checkpoints of this run take up to {} bytes ({} at once, {} bytes each), and the disk has {} free: {} "
       "bytes are missing; {}",
       config.out, use.bytes, use.folders, checkpoint_bytes(config, program), free, use.bytes - free,
       fitting.empty() ? fmt::format("free space or set out= to another disk: even {}", together)
                       : "of the settings that need less: " + fitting);
}

}  // namespace octet
