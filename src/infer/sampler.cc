#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace octet {
namespace {

int32_t argmax(std::span<const float> logits) {
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i)
    if (std::isfinite(logits[i]) && (best < 0 || logits[i] > logits[static_cast<size_t>(best)]))
      best = static_cast<int32_t>(i);
  check(best >= 0, ErrorCode::kInternal, "sampling: none of {} logits is finite", logits.size());
  return best;
}

}  // namespace

void validate(const SamplingOptions& o) {
  check(o.temperature >= 0 && std::isfinite(o.temperature), ErrorCode::kInvalidArgument,
        "temperature: {} (want >= 0; 0 is greedy)", o.temperature);
  check(o.top_k >= 0, ErrorCode::kInvalidArgument, "top_k: {} (want >= 0; 0 is off)", o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, ErrorCode::kInvalidArgument, "top_p: {} (want 0 < p <= 1)", o.top_p);
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& o, uint64_t sequence, uint64_t index) {
  int32_t best = argmax(logits);
  if (o.temperature == 0 || o.top_k == 1) return best;
  std::vector<int32_t> order;
  order.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    if (std::isfinite(logits[i])) order.push_back(static_cast<int32_t>(i));
  auto more_likely = [&](int32_t a, int32_t b) {
    float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  size_t keep = order.size();
  if (o.top_k > 0) keep = std::min(keep, static_cast<size_t>(o.top_k));
  if (keep < order.size() || o.top_p < 1) {
    std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(keep), order.end(), more_likely);
    order.resize(keep);
  }
  std::vector<double> weight(order.size());
  double top = logits[static_cast<size_t>(best)], total = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    weight[i] = std::exp((static_cast<double>(logits[static_cast<size_t>(order[i])]) - top) / o.temperature);
    total += weight[i];
  }
  if (o.top_p < 1) {
    double cumulative = 0;
    size_t count = 0;
    while (count < weight.size() && cumulative < o.top_p * total) cumulative += weight[count++];
    weight.resize(count);
    total = cumulative;
  }
  Philox rng(o.seed, sequence * 0x9E3779B97F4A7C15ull + index);
  double target = rng.uniform() * total;
  for (size_t i = 0; i < weight.size(); ++i) {
    target -= weight[i];
    if (target < 0) return order[i];
  }
  return order[weight.size() - 1];
}

}  // namespace octet
