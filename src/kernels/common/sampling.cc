#include "kernels/common/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

namespace octet {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 1024;  // tokens whose largest logit is found by one vectorised loop

// What ranks a logit: one that is not finite is never chosen.
float rank_of(float logit) { return std::fabs(logit) <= std::numeric_limits<float>::max() ? logit : kNever; }

// An integer in the order of the logits, -0 as 0; integers, because gcc does not vectorise a maximum of floats.
int32_t order_of(float logit) {
  const auto bits = std::bit_cast<int32_t>(logit + 0.0f);
  const int32_t ordered = bits ^ ((bits >> 31) & 0x7fffffff);
  return (bits & 0x7fffffff) < 0x7f800000 ? ordered : std::numeric_limits<int32_t>::min();
}

int32_t largest_order(const float* logits, int64_t count) {
  int32_t largest = std::numeric_limits<int32_t>::min();
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, order_of(logits[i]));
  return largest;
}

// Bins by the distance from the largest logit, 256 to every doubling of (1 + distance): nearer tokens, lower bins.
int bin_of(float distance) {
  const auto bin = (std::bit_cast<int32_t>(distance + 1.0f) - std::bit_cast<int32_t>(1.0f)) >> 15;
  return std::min(bin, SampleScratch::kBins - 1);
}

// The tokens kept so far: those ranked no later than `token` with logit `logit`.
struct Cut {
  float logit = kNever;
  int32_t token = std::numeric_limits<int32_t>::max();
  bool keeps(float other, int64_t id) const { return other > logit || (other == logit && id <= token); }
};

// Moves the cut to the first kept token at which the masses of those ranked up to it reach `target` of their sum.
template <typename Mass, typename Target>
void cut_at_mass(std::span<const float> logits, float largest, const Mass& mass, const Target& target,
                 SampleScratch& scratch, Cut& cut) {
  std::fill_n(scratch.masses, SampleScratch::kBins, 0.0);
  const auto vocab = static_cast<int64_t>(logits.size());
  double total = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    const float logit = rank_of(logits[static_cast<size_t>(v)]);
    if (logit == kNever || !cut.keeps(logit, v)) continue;
    scratch.masses[bin_of(largest - logit)] += mass(logit);
  }
  for (double sum : scratch.masses) total += sum;
  const double wanted = target(total);
  if (wanted > total) return;
  double before = 0;
  int bin = 0;
  while (bin + 1 < SampleScratch::kBins && before + scratch.masses[bin] < wanted) before += scratch.masses[bin++];
  size_t count = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    const float logit = rank_of(logits[static_cast<size_t>(v)]);
    if (logit == kNever || bin_of(largest - logit) != bin || !cut.keeps(logit, v)) continue;
    scratch.tokens[count++] = static_cast<int32_t>(v);
  }
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::sort(scratch.tokens.begin(), scratch.tokens.begin() + static_cast<ptrdiff_t>(count), likelier);
  for (size_t i = 0; i < count; ++i) {
    cut = {logits[static_cast<size_t>(scratch.tokens[i])], scratch.tokens[i]};
    before += mass(cut.logit);
    if (before >= wanted) break;
  }
}

// The kept token with the largest score. A token is scored only where its word allows it to win: with n leading ones
// of its 24 bits u < 1 - 2^-(n+1), so that g < (n + 1) log 2.
int32_t draw(std::span<const float> logits, const SampleRow& row, const Cut& cut, float smallest) {
  const auto vocab = static_cast<int64_t>(logits.size());
  const double temperature = row.temperature;
  int32_t best = -1;
  double highest = -std::numeric_limits<double>::infinity();
  const auto can_win = [&](float logit, int leading_ones) {
    // The bound is rounded up by more than all errors of its own.
    return logit / temperature + (leading_ones + 1) * std::numbers::ln2 * 1.000001 > highest;
  };
  for (int64_t block = 0; 4 * block < vocab; ++block) {
    const int64_t first = 4 * block, count = std::min<int64_t>(4, vocab - first);
    float largest = kNever;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, rank_of(logits[static_cast<size_t>(first + i)]));
    if (largest < smallest || largest < cut.logit || largest == kNever || !can_win(largest, 24)) continue;
    const PhiloxBlock words = sample_words(row, block);
    for (int64_t i = 0; i < count; ++i) {
      const float logit = rank_of(logits[static_cast<size_t>(first + i)]);
      const uint32_t word = words[static_cast<size_t>(i)];
      if (!can_win(logit, std::min(24, std::countl_one(word)))) continue;
      if (logit < smallest || logit == kNever || !cut.keeps(logit, first + i)) continue;
      const double score = logit / temperature + gumbel_from_bits(word);
      if (score > highest) best = static_cast<int32_t>(first + i), highest = score;
    }
  }
  return best;
}

}  // namespace

double gumbel_from_bits(uint32_t word) {
  const double u = (static_cast<double>(word >> 8) + 0.5) * 0x1p-24;
  return -std::log(-std::log(u));
}

int32_t largest_logit(std::span<const float> logits) {
  const auto vocab = static_cast<int64_t>(logits.size());
  int32_t largest = std::numeric_limits<int32_t>::min();
  int64_t at = -1;
  for (int64_t first = 0; first < vocab; first += kBlock) {
    const int32_t block = largest_order(logits.data() + first, std::min(kBlock, vocab - first));
    if (block > largest) largest = block, at = first;
  }
  if (at < 0) return -1;
  while (order_of(logits[static_cast<size_t>(at)]) != largest) ++at;
  return static_cast<int32_t>(at);
}

int32_t sample_from(std::span<const float> logits, const SampleRow& row, SampleScratch& scratch) {
  const int32_t likeliest = largest_logit(logits);
  if (likeliest < 0 || row.temperature == 0 || row.top_k == 1) return likeliest;
  const float largest = logits[static_cast<size_t>(likeliest)];
  const double temperature = row.temperature;
  const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - largest) / temperature); };
  Cut cut;
  if (row.top_k > 0 && row.top_k < static_cast<int64_t>(logits.size())) {
    cut_at_mass(
        logits, largest, [](float) { return 1.0; }, [&](double) { return row.top_k; }, scratch, cut);
  }
  if (row.top_p < 1) {
    cut_at_mass(
        logits, largest, weight, [&](double total) { return std::max(0.0f, row.top_p) * total; }, scratch, cut);
  }
  float smallest = kNever;  // the smallest logit that min_p keeps
  if (row.min_p > 0) {
    const double min_p = std::min(row.min_p, 1.0f);
    smallest = static_cast<float>(largest + std::log(min_p) * temperature);
    while (weight(smallest) >= min_p) smallest = std::nextafter(smallest, kNever);
    while (weight(smallest) < min_p) smallest = std::nextafter(smallest, largest);
  }
  return draw(logits, row, cut, smallest);
}

}  // namespace octet
