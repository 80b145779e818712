// Settings adapter.*: which adapter a run trains on the frozen model of model.from, in PEFT's words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"
#include "model/adapter.h"
#include "model/model.h"
#include "weights/adapter_config.h"

namespace octet {

struct AdapterSettings {
  std::string method = "none";  // lora | dora | prompt_tuning | p_tuning
  int64_t rank = 16;
  double alpha = 32, dropout = 0;
  bool rslora = false;
  std::vector<std::string> targets = {"all-linear"}, exclude;
  std::vector<std::string> ranks, alphas;  // PATTERN=VALUE
  std::vector<std::string> layers;
  std::vector<std::string> train;  // modules
  std::string bias = "none";
  std::string base = "recipe";          // recipe | nf4
  std::vector<std::string> token_rows;  // ids
  int64_t virtual_tokens = 20;          // of prompts
  std::string encoder = "mlp";          // of p_tuning: mlp | lstm
  int64_t encoder_hidden = 0, encoder_layers = 2;

  bool is_on() const { return method != "none"; }
  bool is_prompt() const { return method == "prompt_tuning" || method == "p_tuning"; }
  bool operator==(const AdapterSettings&) const = default;
};

void add_settings(SettingsTable& table, AdapterSettings& settings);

// Throws kInvalidArgument naming the setting: a pattern, layer or number that is malformed, adapter.* without a method.
void validate(const AdapterSettings& settings);

// As adapter_config.json of PEFT says it; `base`: base_model_name_or_path.
PeftConfig peft_config(const AdapterSettings& settings, const std::string& base);

// AdapterSpec::nf4 of this folder under the settings; "": of a model without one. Throws kUnsupported for one in fp4.
int64_t nf4_of(const AdapterSettings& settings, const std::string& folder);

// What the settings add to this model. Throws kInvalidArgument with the nearest names for what matches no module.
AdapterSpec adapter_spec(const AdapterSettings& settings, const ModelConfig& model);

}  // namespace octet
