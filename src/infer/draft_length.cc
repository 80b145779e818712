#include "infer/draft_length.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace octet {

void Acceptance::verified(int64_t drafts, int64_t accepted) {
  right_ = kept_ * right_ + static_cast<double>(accepted);
  tried_ = kept_ * tried_ + static_cast<double>(std::min(accepted + 1, drafts));
}

void Acceptance::undrafted() {
  constexpr double kKept = 0.98;
  right_ *= kKept;
  tried_ *= kKept;
}

double Acceptance::rate(const Acceptance& all) const {
  const double weight = std::min(tried_, kAllWeight);
  return (right_ + kAssumed * kWeight + all.rate() * weight) / (tried_ + kWeight + weight);
}

// 1, 2, 3, 4, 6, 8, 12, 16, ...: the least that is not below.
size_t StepCosts::size_of(int64_t tokens) {
  const auto above = static_cast<uint64_t>(std::max<int64_t>(tokens, 1)) - 1;
  const auto power = static_cast<size_t>(std::bit_width(above));  // tokens <= 2^power
  const bool lower = power >= 2 && tokens <= int64_t{3} << (power - 2);
  return std::min(2 * power - (lower ? 1 : 0), kSizes - 1);
}

void StepCosts::observe(int64_t tokens, double seconds) {
  constexpr double kNew = 0.1, kOutlier = 3;  // a step that waited for the machine says little
  StepCost& size = sizes_[size_of(tokens)];
  known_ = true;
  if (size.seconds == 0) {
    size = {static_cast<double>(tokens), seconds};
    return;
  }
  size.tokens += kNew * (static_cast<double>(tokens) - size.tokens);
  size.seconds += kNew * (std::min(seconds, kOutlier * size.seconds) - size.seconds);
}

double StepCosts::seconds(int64_t tokens, const StepCost& known) const {
  const StepCost *below = nullptr, *above = nullptr;
  const auto wanted = static_cast<double>(tokens);
  for (const StepCost& size : sizes_) {
    if (size.seconds == 0) continue;
    if (size.tokens <= wanted) below = &size;
    if (size.tokens >= wanted && above == nullptr) above = &size;
  }
  if (known.seconds > 0 && known.tokens <= wanted && (below == nullptr || below->tokens < known.tokens)) below = &known;
  if (below == nullptr || above == nullptr || below == above)
    return below != nullptr ? below->seconds : above != nullptr ? above->seconds : 0;
  const double share = (wanted - below->tokens) / (above->tokens - below->tokens);
  return below->seconds + share * (above->seconds - below->seconds);
}

void choose_drafts(std::span<DraftChoice> texts, const StepLoad& load, const StepCosts& plain,
                   const StepCosts& drafted) {
  struct Draft {
    double gain;
    size_t text;
    int64_t place;  // among its sequence's drafts, from 1
  };
  std::vector<Draft> drafts;
  for (size_t t = 0; t < texts.size(); ++t) {
    texts[t].chosen = 0;
    double gain = 1;
    for (int64_t i = 1; i <= texts[t].available; ++i) drafts.push_back({gain *= texts[t].acceptance, t, i});
  }
  if (!plain.known()) return;
  // Stable: drafts of one sequence stay in order.
  std::ranges::stable_sort(drafts, std::ranges::greater(), &Draft::gain);
  auto tokens = static_cast<double>(load.tokens);
  // Sizes that were never tried cost what lies between a step without drafts and the next larger one.
  const StepCost without{tokens, plain.seconds(load.tokens)};
  // Steps with drafts have to be worth the change to them, in which nothing is in flight for a while.
  constexpr double kWorth = 1.05;
  double best = kWorth * tokens / without.seconds;
  size_t count = 0;
  int64_t longest = 0;
  const auto most = static_cast<size_t>(std::clamp<int64_t>(load.room, 0, std::ssize(drafts)));
  for (size_t i = 0; i < most; ++i) {
    tokens += drafts[i].gain;
    longest = std::max(longest, drafts[i].place);
    const double seconds = drafted.seconds(load.tokens + static_cast<int64_t>(i) + 1, without) +
                           load.draft_seconds * static_cast<double>(longest);
    if (tokens / seconds <= best) continue;
    best = tokens / seconds;
    count = i + 1;
  }
  for (size_t i = 0; i < count; ++i) texts[drafts[i].text].chosen = drafts[i].place;
}

}  // namespace octet
