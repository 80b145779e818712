// Rotary embedding: each pair of the first rotary_dim elements of every head is rotated by position * frequency; the
// rest is copied. `inverse` rotates back, which is the gradient. Both multiply what turns by attention_factor.
#include "kernels/cpu/reference.h"
#include "kernels/common/rope_frequencies.h"

namespace octet::cpu::reference {

void rope(const Node& node, RefInputs in, RefResults out) {
  const int64_t heads = node.attr<int64_t>("heads"), dim = node.attr<int64_t>("head_dim");
  const bool interleaved = node.attr<bool>("interleaved");
  const double sign = node.attr<bool>("inverse") ? -1.0 : 1.0;
  const double factor = node.attr<double>("attention_factor");
  const std::vector<double> frequencies = rope_frequencies(node);
  const auto pairs = static_cast<int64_t>(frequencies.size());
  out[0].values = in[0]->values;
  for (int64_t t = 0; t < in[0]->rows(); ++t) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = (*in[1])[t] * frequencies[static_cast<size_t>(i)];
      const double cosine = factor * std::cos(angle), sine = factor * sign * std::sin(angle);
      const int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + pairs;
      for (int64_t h = 0; h < heads; ++h) {
        double* y = out[0].row(t) + h * dim;
        const double a = y[first], b = y[second];
        y[first] = a * cosine - b * sine;
        y[second] = b * cosine + a * sine;
      }
    }
  }
}

}  // namespace octet::cpu::reference
