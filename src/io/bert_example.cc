#include "io/bert_example.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "io/safetensors.h"

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

void mask_example(BertExample& e, const BertMasking& masking, uint64_t seed, uint64_t index) {
  for (size_t i = 0; i < e.masked_positions.size(); ++i)
    e.ids[static_cast<size_t>(e.masked_positions[i])] = e.masked_labels[i];
  e.masked_positions.clear(), e.masked_labels.clear();
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
    e.masked_positions.push_back(position), e.masked_labels.push_back(id);
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

void BertSet::add(const BertExample& e) {
  ids.insert(ids.end(), e.ids.begin(), e.ids.end());
  firsts.push_back(static_cast<int32_t>(std::ranges::count(e.types, 0)));
  starts.push_back(static_cast<int64_t>(ids.size()));
  masked_positions.insert(masked_positions.end(), e.masked_positions.begin(), e.masked_positions.end());
  masked_labels.insert(masked_labels.end(), e.masked_labels.begin(), e.masked_labels.end());
  masked_starts.push_back(static_cast<int64_t>(masked_positions.size()));
  next.push_back(e.next);
}

BertExample BertSet::example(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  const auto part = [i](const std::vector<int32_t>& all, const std::vector<int64_t>& at) {
    return std::vector<int32_t>(all.begin() + at[i], all.begin() + at[i + 1]);
  };
  BertExample e{.ids = part(ids, starts),
                .masked_positions = part(masked_positions, masked_starts),
                .masked_labels = part(masked_labels, masked_starts),
                .next = next[i]};
  e.types.assign(e.ids.size(), 1);
  std::fill_n(e.types.begin(), firsts[i], 0);
  return e;
}

std::vector<int32_t> BertSet::lengths() const {
  std::vector<int32_t> lengths;
  for (size_t i = 0; i + 1 < starts.size(); ++i) lengths.push_back(static_cast<int32_t>(starts[i + 1] - starts[i]));
  return lengths;
}

namespace {

std::string file_of(const std::string& prefix) { return prefix + ".bert.safetensors"; }

// Calls use(name, vector) for every tensor of the file.
template <typename Set, typename Use>
void each_tensor(Set& set, const Use& use) {
  use("ids", set.ids), use("firsts", set.firsts), use("starts", set.starts);
  use("masked_positions", set.masked_positions), use("masked_labels", set.masked_labels);
  use("masked_starts", set.masked_starts), use("next", set.next), use("row_starts", set.row_starts);
}

void check_whole(const BertSet& set, const std::string& path) {
  const auto sound = [&](bool holds, const char* what) {
    check(holds, ErrorCode::kCorrupt, "{}: {}: prepare the set again with octet data bert", path, what);
  };
  const auto ascending = [](const std::vector<int64_t>& starts, size_t end) {
    return !starts.empty() && starts.front() == 0 && std::ranges::is_sorted(starts) &&
           starts.back() == static_cast<int64_t>(end);
  };
  const size_t count = set.next.size();
  sound(set.starts.size() == count + 1 && set.masked_starts.size() == count + 1 && set.firsts.size() == count,
        "its tensors are of different numbers of examples");
  sound(ascending(set.starts, set.ids.size()) && ascending(set.masked_starts, set.masked_positions.size()) &&
            set.masked_labels.size() == set.masked_positions.size(),
        "its examples do not fit its tokens");
  sound(set.row_starts.size() == 1 || ascending(set.row_starts, count), "its rows do not fit its examples");
  const auto known = [&](int32_t id) { return id >= 0 && id < set.vocab_size; };
  sound(std::ranges::all_of(set.ids, known) && std::ranges::all_of(set.masked_labels, known),
        "an id is outside the vocabulary");
  for (size_t i = 0; i < count; ++i) {
    const int64_t length = set.starts[i + 1] - set.starts[i];
    sound(length >= 1 && length <= set.length && set.firsts[i] >= 0 && set.firsts[i] <= length,
          "an example is empty or too long");
    for (int64_t m = set.masked_starts[i]; m < set.masked_starts[i + 1]; ++m)
      sound(set.masked_positions[static_cast<size_t>(m)] >= 0 && set.masked_positions[static_cast<size_t>(m)] < length,
            "a masked position is outside its example");
  }
}

}  // namespace

void write_bert_set(const std::string& prefix, const BertSet& set) {
  std::vector<NamedType> tensors;
  each_tensor(set, [&]<typename T>(const char* name, const std::vector<T>& values) {
    tensors.push_back({name, {sizeof(T) == 8 ? DType::kI64 : DType::kI32, {static_cast<int64_t>(values.size())}}});
  });
  SafetensorsWriter writer(file_of(prefix), tensors,
                           {{"format", "octet bert 1"},
                            {"length", std::to_string(set.length)},
                            {"vocab_size", std::to_string(set.vocab_size)},
                            {"tokenizer", set.tokenizer}});
  for (const NamedType& next : writer.tensors())  // in the file's order
    each_tensor(set, [&](const char* name, const auto& values) {
      if (next.name == name) writer.write(name, std::as_bytes(std::span(values)));
    });
  writer.finish();
}

BertSet read_bert_set(const std::string& prefix) {
  const std::string path = file_of(prefix);
  const TensorSource source(path);
  BertSet set;
  const auto text = [&](const char* key) {
    const auto found = source.metadata().find(key);
    check(found != source.metadata().end(), ErrorCode::kCorrupt,
          "{}: no \"{}\" in its metadata: not made by octet "
          "data bert",
          path, key);
    return found->second;
  };
  const auto number = [&](const char* key) {
    const std::string given = text(key);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), value);
    check(error == std::errc() && end == given.data() + given.size(), ErrorCode::kCorrupt, "{}: \"{}\" is {}", path,
          key, given);
    return value;
  };
  set.length = number("length"), set.vocab_size = number("vocab_size"), set.tokenizer = text("tokenizer");
  each_tensor(set, [&]<typename T>(const char* name, std::vector<T>& values) {
    const TensorView view = source.read(name);
    check(view.type.dtype == (sizeof(T) == 8 ? DType::kI64 : DType::kI32), ErrorCode::kCorrupt, "{}: {} is {}", path,
          name, to_string(view.type));
    values.resize(view.bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
  });
  check_whole(set, path);
  return set;
}

}  // namespace octet
