#include "compress/input_scales.h"

#include <algorithm>
#include <cmath>

#include "base/threads.h"
#include "compress/dense.h"

namespace octet {
namespace {

constexpr float kLeast = 1e-5f;  // of magnitudes that powers are taken of: channels that are always zero
constexpr int kAlphas = 20, kClips = 11;

std::vector<float> difference(std::span<const float> a, std::span<const float> b) {
  std::vector<float> result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = a[i] - b[i];
  return result;
}

double energy(const InputStats& x, std::span<const float> weights) {
  return product_energy(x.sample, weights, x.rows, std::ssize(weights) / x.width, x.width);
}

// Rounded under scales, as the unscaled x sees it.
std::vector<float> rounded_under(std::span<const float> weights, std::span<const float> scales, const CodeRule& rule) {
  const auto cols = std::ssize(scales), rows = std::ssize(weights) / cols;
  std::vector<float> scaled(weights.begin(), weights.end()), inverse(scales.size());
  for (size_t k = 0; k < scales.size(); ++k) inverse[k] = 1 / scales[k];
  scale_columns(scaled, scales);
  scaled = dequantize(round_to_nearest(scaled, rows, cols, rule));
  scale_columns(scaled, inverse);
  return scaled;
}

// Their geometric middle at 1, so that neither x nor W moves far as a whole.
void centre(std::vector<float>& scales) {
  const auto [least, most] = std::ranges::minmax_element(scales);
  const float middle = std::sqrt(*least * *most);
  for (float& scale : scales) scale /= middle;
}

}  // namespace

void InputStats::divide(std::span<const float> scales) {
  std::vector<float> inverse(scales.size());
  for (size_t k = 0; k < scales.size(); ++k) inverse[k] = 1 / scales[k];
  for (std::vector<float>* values : {&mean_abs, &max_abs, &sample}) scale_columns(*values, inverse);
}

void scale_columns(std::span<float> weights, std::span<const float> scales) {
  const auto cols = std::ssize(scales);
  parallel_for(std::ssize(weights) / cols, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t k = 0; k < cols; ++k) weights[static_cast<size_t>(r * cols + k)] *= scales[static_cast<size_t>(k)];
  });
}

std::vector<float> smooth_scales(const InputStats& x, const Matrices& weights, double alpha) {
  std::vector<float> most(static_cast<size_t>(x.width)), scales(most.size());
  for (const auto& weight : weights)
    for (size_t i = 0; i < weight.size(); ++i)
      most[i % most.size()] = std::max(most[i % most.size()], std::abs(weight[i]));
  for (size_t k = 0; k < scales.size(); ++k)
    scales[k] = static_cast<float>(std::pow(std::max(x.max_abs[k], kLeast), alpha) /
                                   std::pow(std::max(most[k], kLeast), 1 - alpha));
  centre(scales);
  return scales;
}

std::vector<float> search_scales(const InputStats& x, const Matrices& weights, const CodeRule& rule) {
  std::vector<float> best;
  double least = 0;
  for (int step = 0; step < kAlphas; ++step) {
    std::vector<float> scales(static_cast<size_t>(x.width));
    for (size_t k = 0; k < scales.size(); ++k)
      scales[k] = static_cast<float>(std::pow(std::max(x.mean_abs[k], kLeast), static_cast<double>(step) / kAlphas));
    centre(scales);
    double error = 0;
    for (const auto& weight : weights) error += energy(x, difference(rounded_under(weight, scales, rule), weight));
    if (best.empty() || error < least) least = error, best = std::move(scales);
  }
  return best;
}

std::vector<float> search_clips(const InputStats& x, std::span<const float> weights, const CodeRule& rule) {
  const int64_t width = rule.width(x.width), groups = x.width / width, rows = std::ssize(weights) / x.width;
  std::vector<float> clips(static_cast<size_t>(rows * groups));
  for (int64_t g = 0; g < groups; ++g) {
    const std::vector<float> gram = column_gram(x.sample, x.rows, x.width, g * width, width);
    parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
      std::vector<float> error(static_cast<size_t>(width)), along(error.size());  // gram times error
      for (int64_t r = begin; r < end; ++r) {
        const auto values = weights.subspan(static_cast<size_t>(r * x.width + g * width), static_cast<size_t>(width));
        double least = 0;
        for (int step = 0; step < kClips; ++step) {
          const float clip = 1 - 0.05f * static_cast<float>(step);
          const Grid grid = fit_grid(values, rule, clip);
          for (size_t k = 0; k < error.size(); ++k) error[k] = grid.nearest(values[k]) - values[k];
          std::ranges::fill(along, 0.0f);
          for (size_t i = 0; i < error.size(); ++i)
            for (size_t k = 0; k < error.size(); ++k) along[k] += gram[i * error.size() + k] * error[i];
          double sum = 0;
          for (size_t k = 0; k < error.size(); ++k)
            sum += static_cast<double>(along[k]) * static_cast<double>(error[k]);
          if (step > 0 && sum >= least) continue;
          least = sum;
          clips[static_cast<size_t>(r * groups + g)] = clip;
        }
      }
    });
  }
  return clips;
}

void OutputError::add(const InputStats& x, std::span<const float> weights, std::span<const float> rounded) {
  all_ += energy(x, weights), lost_ += energy(x, difference(rounded, weights));
}
double OutputError::relative() const { return all_ > 0 ? std::sqrt(lost_ / all_) : 0.0; }

}  // namespace octet
