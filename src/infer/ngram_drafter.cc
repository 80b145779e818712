#include "infer/ngram_drafter.h"

#include <algorithm>

#include "base/rng.h"

namespace octet {

// The entry of the n-gram that ends in front of `end`: where it is, or where it belongs.
int32_t& NgramIndex::entry(Table& table, int64_t length, std::span<const int32_t> tokens, int64_t end) {
  const auto gram = [&](int64_t behind) {
    return tokens.subspan(static_cast<size_t>(behind - length), static_cast<size_t>(length));
  };
  const std::span<const int32_t> wanted = gram(end);
  uint64_t hash = 0;
  for (const int32_t token : wanted) hash = mix64(hash * 31 + static_cast<uint64_t>(token) + 1);
  const size_t mask = table.ends.size() - 1;
  size_t at = hash & mask;
  while (table.ends[at] != 0 && !std::ranges::equal(gram(table.ends[at]), wanted)) at = (at + 1) & mask;
  return table.ends[at];
}

void NgramIndex::add(Table& table, int64_t length, std::span<const int32_t> tokens, int64_t end) {
  if (2 * table.used >= static_cast<int64_t>(table.ends.size())) {
    Table larger{.ends = std::vector<int32_t>(std::max<size_t>(64, 4 * table.ends.size()))};
    for (const int32_t known : table.ends)
      if (known != 0) entry(larger, length, tokens, known) = known;
    larger.used = table.used;
    table = std::move(larger);
  }
  int32_t& known = entry(table, length, tokens, end);
  table.used += known == 0;
  known = static_cast<int32_t>(end);
}

void NgramIndex::find(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>& drafts) {
  drafts.clear();
  const auto end = static_cast<int64_t>(tokens.size());
  for (; indexed_ < end; ++indexed_)
    for (size_t i = 0; i < kLengths.size(); ++i)
      if (indexed_ >= kLengths[i]) add(tables_[i], kLengths[i], tokens, indexed_);
  for (size_t i = 0; i < kLengths.size(); ++i) {
    if (end < kLengths[i] || tables_[i].used == 0) continue;
    const int64_t from = entry(tables_[i], kLengths[i], tokens, end);
    if (from == 0) continue;
    for (int64_t k = 0; k < most; ++k)
      drafts.push_back(from + k < end ? tokens[static_cast<size_t>(from + k)]
                                      : drafts[static_cast<size_t>(from + k - end)]);
    return;
  }
}

void NgramDrafter::propose(std::span<DraftSequence> texts) {
  for (DraftSequence& text : texts) texts_[text.id].find(text.tokens, text.most, text.drafts);
}

}  // namespace octet
