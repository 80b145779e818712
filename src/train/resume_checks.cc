#include "train/resume_checks.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "io/manifest.h"
#include "model/hugging_face.h"

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

std::string biases_text(const Biases& biases) { return biases == Biases::all(false) ? "false" : "true"; }

}  // namespace

std::optional<std::string> checkpoint_to_resume(const std::string& out) {
  try {
    return newest_sound_checkpoint(out);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    const std::string whole = whole_weights(out);
    fail(error.code(),
         "{}; nothing was changed. Ways on: bring one back from a copy; {}begin anew in another out=, or here with "
         "resume=never, which moves them to {}/set_aside_N; or delete them",
         error.message(),
         whole.empty() ? ""
                       : fmt::format("start a new run from the weights of {}, which are whole, with model.from={} and "
                                     "another out=; ",
                                     whole, whole),
         out);
  }
}

void check_same_data(const RunState& kept, const std::string& folder, const std::string& data,
                     const std::string& data_checksum) {
  const std::string ways = fmt::format(
      "set data.* and train.global_batch as in {}/config.yaml, start a new run from its weights with model.from={} "
      "and another out=, or set resume=never (or another out=) to start afresh",
      parent_folder(parent_folder(folder)), folder);
  check(kept.data == data, ErrorCode::kInvalidArgument, "{} was trained on \"{}\", this run has \"{}\": {}", folder,
        kept.data, data, ways);
  if (kept.data_checksum.empty()) {
    log_warning(
        "{} has no checksum of the data it was trained on: it is compared by its numbers of tokens and documents alone",
        folder);
    return;
  }
  check(kept.data_checksum == data_checksum, ErrorCode::kInvalidArgument,
        "{} was trained on other tokens, though as many: their checksum was {}, that of data.train is {}: {}", folder,
        kept.data_checksum, data_checksum, ways);
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
    if (std::count(all.begin(), all.end(), all[0]) == config.layers) all.resize(1);
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
  RunConfig old;
  try {
    settings_of(old).load_yaml_text(kept.settings, folder + "/run.json");
  } catch (const Error&) {
    return;  // changed_settings() says why
  }
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
       "{} holds the moments of another optimiser: {}; set what the checkpoint has, or start a new run, with fresh "
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
    log_warning("settings are not compared with those of {}: {}", folder, error.message());
    return "";
  }
  std::string changes;
  for (const std::string& name : now.names())
    if (name != "resume") add_change(changes, name, before.get(name), now.get(name));
  return changes;
}

}  // namespace octet
