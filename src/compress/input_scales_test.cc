// Searches against plain ones in float64.
#include "compress/input_scales.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace octet {
namespace {

constexpr int64_t kRows = 9, kCols = 64, kTokens = 40;

InputStats make_inputs() {
  Philox rng(5);
  InputStats x{.width = kCols,
               .rows = kTokens,
               .mean_abs = std::vector<float>(kCols),
               .max_abs = std::vector<float>(kCols),
               .sample = std::vector<float>(kTokens * kCols)};
  for (size_t i = 0; i < x.sample.size(); ++i) {
    const size_t k = i % kCols;
    x.sample[i] = static_cast<float>(rng.normal() * (k % 16 == 3 ? 25 : 1));
    x.max_abs[k] = std::max(x.max_abs[k], std::abs(x.sample[i]));
    x.mean_abs[k] += std::abs(x.sample[i]) / kTokens;
  }
  return x;
}

std::vector<float> make_weights(uint64_t seed) {
  Philox rng(seed);
  std::vector<float> weights(kRows * kCols);
  for (float& weight : weights) weight = static_cast<float>(0.1 * rng.normal());
  return weights;
}

double energy(const InputStats& x, const std::vector<float>& weights, size_t first = 0, size_t width = kCols) {
  double sum = 0;
  for (size_t t = 0; t < kTokens; ++t)
    for (size_t n = 0; n < weights.size() / width; ++n) {
      double y = 0;
      for (size_t k = 0; k < width; ++k)
        y += static_cast<double>(x.sample[t * kCols + first + k]) * static_cast<double>(weights[n * width + k]);
      sum += y * y;
    }
  return sum;
}

std::vector<float> minus(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

TEST(InputScales, ErrorIsThatOfTheOutputs) {
  const InputStats x = make_inputs();
  const std::vector<float> weights = make_weights(1),
                           rounded = dequantize(round_to_nearest(weights, kRows, kCols, {.group = 32}));
  const double wanted = std::sqrt(energy(x, minus(rounded, weights)) / energy(x, weights));
  OutputError error, none;
  error.add(x, weights, rounded), none.add(x, weights, weights);
  EXPECT_NEAR(error.relative(), wanted, 1e-5 * wanted);
  EXPECT_EQ(none.relative(), 0);
}

TEST(InputScales, SmoothingSharesTheRange) {
  const InputStats x = make_inputs();
  const std::vector<float> first = make_weights(1), second = make_weights(2);
  const std::vector<float> scales = smooth_scales(x, {first, second}, 0.5);
  double ratio = 0;
  for (size_t k = 0; k < kCols; ++k) {
    float most = 0;
    for (size_t n = 0; n < kRows; ++n)
      most = std::max({most, std::abs(first[n * kCols + k]), std::abs(second[n * kCols + k])});
    const double balance = static_cast<double>(x.max_abs[k] / scales[k]) / static_cast<double>(most * scales[k]);
    if (k == 0) ratio = balance;
    EXPECT_NEAR(balance / ratio, 1, 1e-4);  // x / s and W s have ranges in one proportion
  }
}

// The search takes the least error of its grid; large channels make that better than no scaling.
TEST(InputScales, SearchFindsTheBestPower) {
  const InputStats x = make_inputs();
  const CodeRule rule{.group = 32};
  const std::vector<float> first = make_weights(1), second = make_weights(2);
  const auto error = [&](const std::vector<float>& scales) {
    double sum = 0;
    for (const std::vector<float>& weights : {first, second}) {
      std::vector<float> scaled = weights;
      scale_columns(scaled, scales);
      scaled = dequantize(round_to_nearest(scaled, kRows, kCols, rule));
      for (size_t i = 0; i < scaled.size(); ++i) scaled[i] /= scales[i % kCols];
      sum += energy(x, minus(scaled, weights));
    }
    return sum;
  };
  const std::vector<float> found = search_scales(x, {first, second}, rule);
  double least = error(std::vector<float>(kCols, 1.0f));
  EXPECT_LT(error(found), 0.9 * least);
  for (int step = 1; step < 20; ++step) {
    std::vector<float> scales = x.mean_abs;
    for (float& scale : scales) scale = std::pow(scale, static_cast<float>(step) / 20);
    const auto [low, high] = std::ranges::minmax_element(scales);
    const float middle = std::sqrt(*low * *high);
    for (float& scale : scales) scale /= middle;
    least = std::min(least, error(scales));
  }
  EXPECT_NEAR(error(found), least, 1e-3 * least);
}

TEST(InputScales, ClipsAreTheBestOfEachGroup) {
  const InputStats x = make_inputs();
  const std::vector<float> weights = make_weights(3);
  for (const bool symmetric : {true, false}) {
    const CodeRule rule{.group = 32, .symmetric = symmetric};
    const std::vector<float> clips = search_clips(x, weights, rule);
    ASSERT_EQ(clips.size(), static_cast<size_t>(kRows * 2));
    bool clipped = false;
    for (size_t g = 0; g < clips.size(); ++g) {
      const std::vector<float> values(weights.begin() + static_cast<ptrdiff_t>(g * 32),
                                      weights.begin() + static_cast<ptrdiff_t>(g * 32 + 32));
      const auto error = [&](float clip) {
        const Grid grid = fit_grid(values, rule, clip);
        std::vector<float> difference(values.size());
        for (size_t k = 0; k < values.size(); ++k) difference[k] = grid.nearest(values[k]) - values[k];
        return energy(x, difference, g % 2 * 32, 32);
      };
      double least = error(1);
      for (int step = 1; step <= 10; ++step) least = std::min(least, error(1 - 0.05f * static_cast<float>(step)));
      EXPECT_NEAR(error(clips[g]), least, 1e-3 * least);
      clipped |= clips[g] < 1;
    }
    EXPECT_TRUE(clipped);
  }
}

TEST(InputScales, ScaledInputsAndWeightsMakeTheSameProduct) {
  InputStats x = make_inputs();
  std::vector<float> weights = make_weights(4);
  const double before = energy(x, weights);
  const std::vector<float> scales = smooth_scales(x, {weights}, 0.7);
  scale_columns(weights, scales);
  x.divide(scales);
  EXPECT_NEAR(energy(x, weights), before, 1e-5 * before);
  EXPECT_FLOAT_EQ(x.max_abs[3], make_inputs().max_abs[3] / scales[3]);
}

}  // namespace
}  // namespace octet
