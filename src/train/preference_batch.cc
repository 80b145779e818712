#include "train/preference_batch.h"

#include <algorithm>

#include "base/error.h"

namespace octet {

PreferencePair pair_of(const TokenSample& row, const std::string& where) {
  check(row.segments.size() == 2 && row.counts.size() == row.tokens.size(), ErrorCode::kCorrupt,
        "{}: row {} has {} sequences (want 2, a chosen and a rejected one, with a mask)", where, row.row,
        row.segments.size());
  PreferencePair pair;
  const size_t cut = static_cast<size_t>(row.segments[1]), ends[] = {0, cut, row.tokens.size()};
  for (size_t side = 0; side < 2; ++side) {
    const auto begin = static_cast<ptrdiff_t>(ends[side]), end = static_cast<ptrdiff_t>(ends[side + 1]);
    pair.tokens[side].assign(row.tokens.begin() + begin, row.tokens.begin() + end);
    pair.counts[side].assign(row.counts.begin() + begin, row.counts.begin() + end);
    check(end - begin >= 2 && std::count(pair.counts[side].begin() + 1, pair.counts[side].end(), 1) > 0,
          ErrorCode::kCorrupt, "{}: the {} sequence of row {} has {} tokens and no answer behind the first", where,
          side == 0 ? "chosen" : "rejected", row.row, end - begin);
  }
  return pair;
}

Batch pack_pairs(std::span<const PreferencePair> given, int64_t pairs, int64_t length,
                 const PreferenceSettings& settings) {
  check(std::ssize(given) <= pairs, ErrorCode::kInternal, "batch: {} pairs for {} rows", given.size(), pairs);
  Batch batch = token_batch(pairs, length, /*targets=*/true);
  batch.add("segments", {DType::kI32, {2 * pairs + 1}});
  const auto floats = [&](const char* name, int64_t count) {
    return batch.add(name, {DType::kF32, {count}}, /*optional=*/true).values<float>();
  };
  const auto ids = batch.ints("ids"), positions = batch.ints("positions"), targets = batch.ints("targets"),
             segments = batch.ints("segments");
  const std::span<float> of_side[] = {floats("chosen", pairs * length), floats("rejected", pairs * length)};
  const std::span<float> reference[] = {floats("reference_chosen", pairs), floats("reference_rejected", pairs)};
  const std::span<float> share[] = {floats("chosen_share", pairs), floats("rejected_share", pairs)};
  const auto goal = floats("goal", pairs);
  const auto labels = batch.add("pair_targets", {DType::kI32, {pairs}}, /*optional=*/true).values<int32_t>();
  std::ranges::fill(labels, -1);
  segments.back() = static_cast<int32_t>(pairs * length);
  for (int64_t p = 0; p < pairs; ++p) {
    const auto at = static_cast<size_t>(p);
    size_t to = at * static_cast<size_t>(length);
    segments[2 * at] = static_cast<int32_t>(to), segments[2 * at + 1] = static_cast<int32_t>(to) + 1;
    if (p >= std::ssize(given)) continue;
    const PreferencePair& pair = given[at];
    check(pair.inputs() <= length, ErrorCode::kInvalidArgument,
          "a pair of {} and {} tokens does not fit rows of {}: raise data.sequence_length", pair.tokens[0].size(),
          pair.tokens[1].size(), length);
    for (size_t side = 0; side < 2; ++side) {
      segments[2 * at + side] = static_cast<int32_t>(to);
      int64_t answer = 0;
      for (size_t i = 0; i + 1 < pair.tokens[side].size(); ++i, ++to) {
        ids[to] = pair.tokens[side][i], positions[to] = static_cast<int32_t>(i);
        of_side[side][to] = 1;
        if (pair.counts[side][i + 1] == 0) continue;
        targets[to] = pair.tokens[side][i + 1];
        ++answer;
      }
      reference[side][at] = pair.reference[side];
      share[side][at] = 1 / static_cast<float>(answer);
    }
    goal[at] = static_cast<float>(0.5 / settings.beta);
    labels[at] = 0;
  }
  batch.target_count = std::ssize(given);
  return batch;
}

}  // namespace octet
