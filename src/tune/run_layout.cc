#include "tune/run_layout.h"

#include <fmt/format.h>

namespace octet {

RunLayout layout_of(const RunConfig& c) {
  return {.tensor = c.tensor,
          .context = c.context,
          .pipeline = c.pipeline,
          .data = c.data_ranks,
          .chunks = c.chunks,
          .micro_batch = c.micro_batch,
          .sequence = c.sequence,
          .shard = c.shard,
          .recompute = c.recompute,
          .recipe = c.recipe,
          .transposes = c.transposes};
}

RunConfig with_layout(RunConfig c, const RunLayout& l) {
  if (c.global_batch == 0) c.global_batch = c.micro_batch;
  c.tensor = l.tensor, c.context = l.context, c.pipeline = l.pipeline, c.data_ranks = l.data, c.chunks = l.chunks;
  c.micro_batch = l.micro_batch, c.sequence = l.sequence;
  c.shard = l.shard, c.recompute = l.recompute, c.recipe = l.recipe, c.transposes = l.transposes;
  c.chosen_mesh.reset();
  return c;
}

std::string to_text(const RunLayout& l) {
  std::string text;
  const auto axis = [&](const char* name, int64_t size) {
    if (size > 1) text += fmt::format("{}={} ", name, size);
  };
  axis("tp", l.tensor), axis("cp", l.context), axis("pp", l.pipeline), axis("dp", l.data), axis("chunks", l.chunks);
  text += fmt::format("micro_batch={} {}{}recompute={} {}", l.micro_batch, l.sequence ? "sequence " : "",
                      l.shard == "none" ? "" : "shard=" + l.shard + " ", l.recompute, l.recipe);
  return text + (l.transposes == "cached" ? "" : " transposes=" + l.transposes);
}

const std::vector<std::string>& layout_settings() {
  static const std::vector<std::string> names = {"parallel.tensor",      "parallel.context",  "parallel.pipeline",
                                                 "parallel.data",        "parallel.chunks",   "train.micro_batch",
                                                 "parallel.shard",       "parallel.sequence", "precision.recipe",
                                                 "precision.transposes", "recompute"};
  return names;
}

std::set<std::string> given_settings(const RunConfig& defaults,
                                     const std::function<void(RunConfig&, SettingsTable&)>& read) {
  // Read into two structs that differ in all of them: what is the same afterwards was given.
  RunConfig one = defaults, other = defaults;
  SettingsTable of_one = settings_of(one), of_other = settings_of(other);
  one.tensor = one.context = one.pipeline = one.data_ranks = one.chunks = one.micro_batch = 1;
  other.tensor = other.context = other.pipeline = other.data_ranks = other.chunks = other.micro_batch = 2;
  one.sequence = false, other.sequence = true;
  for (std::string RunConfig::*name :
       {&RunConfig::shard, &RunConfig::recipe, &RunConfig::transposes, &RunConfig::recompute})
    one.*name = "", other.*name = "free";
  read(one, of_one), read(other, of_other);
  std::set<std::string> given;
  for (const std::string& name : layout_settings())
    if (of_one.get(name) == of_other.get(name)) given.insert(name);
  return given;
}

std::string layout_yaml(const RunConfig& config, const RunLayout& layout, const std::string& comment) {
  RunConfig chosen = with_layout(config, layout);
  return comment + settings_of(chosen).to_yaml();
}

}  // namespace octet
