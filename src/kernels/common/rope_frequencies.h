// The angular frequency of each rotated pair, with the context-extension formulas of the ecosystem's checkpoints.
// linear: positions divided by factor. llama3: long wavelengths divided by factor, a ramp between (Llama 3.1).
#pragma once

#include <cmath>
#include <numbers>
#include <vector>

#include "base/error.h"
#include "ir/graph.h"

namespace octet {

inline std::vector<double> rope_frequencies(const Attrs& attrs) {
  const int64_t head_dim = attrs.get<int64_t>("head_dim");
  const int64_t rotary = attrs.get_or<int64_t>("rotary_dim", head_dim);
  const double theta = attrs.get_or<double>("theta", 10000.0), factor = attrs.get_or<double>("factor", 1.0);
  const std::string scaling = attrs.get_or<std::string>("scaling", "none");
  check(scaling == "none" || scaling == "linear" || scaling == "llama3", ErrorCode::kInvalidArgument,
        "rope: scaling \"{}\" is unknown: use none, linear or llama3", scaling);
  const double low = attrs.get_or<double>("low_freq_factor", 1.0), high = attrs.get_or<double>("high_freq_factor", 4.0);
  const auto original = static_cast<double>(attrs.get_or<int64_t>("original_max_positions", 8192));
  std::vector<double> result;
  for (int64_t i = 0; i < rotary / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
    if (scaling == "linear") {
      frequency /= factor;
    } else if (scaling == "llama3") {
      const double turns = original * frequency / (2 * std::numbers::pi);  // turns within the original context
      const double ramp = std::fmin(1.0, std::fmax(0.0, (turns - low) / (high - low)));
      frequency *= (1 - ramp) / factor + ramp;
    }
    result.push_back(frequency);
  }
  return result;
}

}  // namespace octet
