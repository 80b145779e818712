// The angular frequency of each rotated pair, with the context-extension formulas of the ecosystem's checkpoints.
// linear: positions divided by factor. llama3: long wavelengths divided by factor, a ramp between (Llama 3.1). yarn:
// the same with a ramp over the pairs' numbers (arXiv 2309.00071); transformers' bounds of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "ir/graph.h"

namespace octet {

inline std::vector<double> rope_frequencies(const Node& rope) {
  const int64_t rotary = rope.attrs.get_or("rotary_dim", rope.attr<int64_t>("head_dim"));
  const double theta = rope.attr<double>("theta"), factor = rope.attr<double>("factor");
  const std::string& scaling = rope.attr<std::string>("scaling");
  const double low = rope.attr<double>("low_freq_factor"), high = rope.attr<double>("high_freq_factor");
  const auto original = static_cast<double>(rope.attr<int64_t>("original_max_positions"));
  // The pair, of fractions of one, that makes so many turns within the original context.
  const auto pair_of = [&](double turns) {
    return static_cast<double>(rotary) * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double first = pair_of(high), last = pair_of(low);  // of yarn's ramp
  if (rope.attr<bool>("truncate")) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, static_cast<double>(rotary - 1));
  if (first == last) last += 0.001;
  std::vector<double> result;
  for (int64_t i = 0; i < rotary / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
    if (scaling == "linear") {
      frequency /= factor;
    } else if (scaling == "llama3") {
      const double turns = original * frequency / (2 * std::numbers::pi);  // turns within the original context
      const double ramp = std::fmin(1.0, std::fmax(0.0, (turns - low) / (high - low)));
      frequency *= (1 - ramp) / factor + ramp;
    } else if (scaling == "yarn") {
      const double ramp = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
      frequency *= ramp / factor + (1 - ramp);
    }
    result.push_back(frequency);
  }
  return result;
}

}  // namespace octet
