// What a tuner chooses of a training run: its mesh, its micro-batch and what trades memory for time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "train/run_config.h"

namespace octet {

struct RunLayout {
  int64_t tensor = 1, context = 1, pipeline = 1, data = 1, chunks = 1, micro_batch = 1;
  bool sequence = false;
  std::string shard = "none", recompute = "none", recipe = "bf16", transposes = "cached";
  auto operator<=>(const RunLayout&) const = default;
  int64_t ranks() const { return tensor * context * pipeline * data; }
};

RunLayout layout_of(const RunConfig& config);
RunConfig with_layout(RunConfig config, const RunLayout& layout);
// "tp=8 pp=8 dp=16 chunks=3 micro_batch=1 sequence shard=optimizer recompute=light fp8-current"
std::string to_text(const RunLayout& layout);

// The settings that a RunLayout is made of, by their names.
const std::vector<std::string>& layout_settings();

// Which of them a user's settings give, as read(config, table) reads them: what it leaves as it was is free.
std::set<std::string> given_settings(const RunConfig& defaults,
                                     const std::function<void(RunConfig&, SettingsTable&)>& read);

// A file of settings for `octet train` whose mesh, micro-batch and memory are those of the layout.
std::string layout_yaml(const RunConfig& config, const RunLayout& layout, const std::string& comment);

}  // namespace octet
