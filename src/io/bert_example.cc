#include "io/bert_example.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace octet {

BertTokens bert_tokens(const Tokenizer& tokenizer) {
  const auto find = [&](std::string_view text) {
    for (const AddedToken& token : tokenizer.added_tokens())
      if (token.text == text) return token.id;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      std::string_view bytes = tokenizer.token_bytes(id);
      if (bytes.starts_with(' ')) bytes.remove_prefix(1);  // WordPiece's words begin with one
      if (bytes == text) return id;
    }
    fail(ErrorCode::kInvalidArgument,
         "the vocabulary ({}) has no {}: BERT pretraining needs one with [CLS], [SEP] and [MASK]", tokenizer.kind(),
         text);
  };
  return {.cls = find("[CLS]"), .sep = find("[SEP]"), .mask = find("[MASK]")};
}

void mask_example(BertSequence& e, const BertMasking& masking, uint64_t seed, uint64_t index) {
  for (size_t i = 0; i < e.positions.size(); ++i) e.ids[static_cast<size_t>(e.positions[i])] = e.labels[i];
  e.positions.clear(), e.labels.clear();
  const auto& [cls, sep, mask] = masking.tokens;
  std::vector<int32_t> candidates;
  candidates.reserve(e.ids.size());
  for (size_t i = 0; i < e.ids.size(); ++i)
    if (e.ids[i] != cls && e.ids[i] != sep) candidates.push_back(static_cast<int32_t>(i));
  const auto wanted = std::max<int64_t>(1, std::llround(masking.share * static_cast<double>(e.ids.size())));
  const auto count = static_cast<size_t>(std::min({wanted, masking.most, static_cast<int64_t>(candidates.size())}));
  Philox random(seed, index);
  for (size_t i = 0; i < count; ++i) std::swap(candidates[i], candidates[i + random.below(candidates.size() - i)]);
  candidates.resize(count);
  std::ranges::sort(candidates);
  for (const int32_t position : candidates) {
    int32_t& id = e.ids[static_cast<size_t>(position)];
    e.positions.push_back(position), e.labels.push_back(id);
    const uint64_t chosen = random.below(10);
    if (chosen < 8) {
      id = mask;
    } else if (chosen == 8) {
      do id = static_cast<int32_t>(random.below(static_cast<uint64_t>(masking.vocab_size)));
      while (id == cls || id == sep || id == mask);
    }
  }
}

std::vector<std::vector<int64_t>> pack_lengths(std::span<const int32_t> lengths, int64_t row, int64_t most) {
  check(most >= 1 && most <= 3, ErrorCode::kInvalidArgument, "{} examples in a row (want 1..3)", most);
  std::vector<std::vector<int64_t>> of_length(static_cast<size_t>(row + 1));  // the last is taken first
  for (size_t i = lengths.size(); i-- > 0;) {
    check(lengths[i] >= 1 && lengths[i] <= row, ErrorCode::kInvalidArgument,
          "example {} has {} tokens, rows {} (want 1..{})", i, lengths[i], row, row);
    of_length[static_cast<size_t>(lengths[i])].push_back(static_cast<int64_t>(i));
  }
  const auto left = [&](int64_t length) { return std::ssize(of_length[static_cast<size_t>(length)]); };
  // The longest at most so long of those that are left but for `taken` of length `than`; 0: none.
  const auto longest = [&](int64_t length, int64_t than) {
    while (length > 0 && left(length) <= (length == than ? 1 : 0)) --length;
    return length;
  };
  std::vector<std::vector<int64_t>> rows;
  const auto take = [&](int64_t length) {
    auto& list = of_length[static_cast<size_t>(length)];
    rows.back().push_back(list.back());
    list.pop_back();
  };
  for (int64_t first = row; first > 0; --first) {
    int64_t a = 0, b = 0, waste = -1;
    while (left(first) > 0) {
      rows.emplace_back();
      take(first);
      if (most == 1) continue;
      const int64_t space = row - first;
      // The best two stay so while there are some left of each.
      const bool again = waste >= 0 && (a == 0 || left(a) > (a == b ? 1 : 0)) && (b == 0 || left(b) > 0);
      if (!again) {
        a = b = 0, waste = space;
        for (int64_t second = longest(space, 0); second > 0; second = longest(second - 1, 0)) {
          const int64_t third = most == 3 ? longest(std::min(second, space - second), second) : 0;
          const int64_t unused = space - second - third;
          if (unused < waste || (unused == waste && second - third < a - b)) a = second, b = third, waste = unused;
          if (2 * second < space - waste) break;  // no two of these fill as much
        }
      }
      if (a > 0) take(a);
      if (b > 0) take(b);
    }
  }
  return rows;
}

void BertExamples::add(const BertSequence& e) {
  ids.insert(ids.end(), e.ids.begin(), e.ids.end());
  firsts.push_back(static_cast<int32_t>(std::ranges::count(e.types, 0)));
  starts.push_back(static_cast<int64_t>(ids.size()));
  masked_positions.insert(masked_positions.end(), e.positions.begin(), e.positions.end());
  masked_labels.insert(masked_labels.end(), e.labels.begin(), e.labels.end());
  masked_starts.push_back(static_cast<int64_t>(masked_positions.size()));
  is_next.push_back(e.is_next);
}

BertSequence BertExamples::example(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  const auto part = [i](const std::vector<int32_t>& all, const std::vector<int64_t>& at) {
    return std::vector<int32_t>(all.begin() + at[i], all.begin() + at[i + 1]);
  };
  BertSequence e{.ids = part(ids, starts),
                 .positions = part(masked_positions, masked_starts),
                 .labels = part(masked_labels, masked_starts),
                 .is_next = is_next[i]};
  e.types.assign(e.ids.size(), 1);
  std::fill_n(e.types.begin(), firsts[i], 0);
  return e;
}

std::vector<int32_t> BertExamples::lengths() const {
  std::vector<int32_t> lengths;
  for (size_t i = 0; i + 1 < starts.size(); ++i) lengths.push_back(static_cast<int32_t>(starts[i + 1] - starts[i]));
  return lengths;
}

}  // namespace octet
