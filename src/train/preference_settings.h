// Settings dpo.*: how train.objective=dpo learns from pairs of answers.
#pragma once

#include <string>

#include "base/settings.h"

namespace octet {

struct PreferenceSettings {
  std::string loss = "sigmoid";  // sigmoid | ipo
  double beta = 0.1;
  double label_smoothing = 0;  // the share of pairs whose answers are taken to be the wrong way round
  std::string reference;       // a model's folder; "": model.from

  bool operator==(const PreferenceSettings&) const = default;
};

void add_settings(SettingsTable& table, PreferenceSettings& settings);

// Throws kInvalidArgument naming the setting.
void validate(const PreferenceSettings& settings);

}  // namespace octet
