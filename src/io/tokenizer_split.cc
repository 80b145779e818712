// See tokenizer_split.h.
#include "io/tokenizer_split.h"

#include <algorithm>

#include "base/error.h"
#include "io/bpe_tokenizer.h"
#include "io/tokenizer_utf8.h"

namespace octet {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kPunctuationPattern = R"([\p{P}$+<=>^`|~])";

namespace {

using Behavior = SplitRule::Behavior;

// Joins neighbours in place as the behaviour asks; parts cover the text without gaps.
template <typename Part>
void join_parts(Behavior behavior, std::vector<Part>& parts) {
  if (behavior == Behavior::kRemoved) {
    std::erase_if(parts, [](const Part& part) { return part.match; });
    return;
  }
  std::vector<Part> joined;
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  bool previous_match = false;
  for (const Part& part : parts) {
    const bool join = behavior == Behavior::kContiguous ? part.match == previous_match : part.match && !previous_match;
    if (join && !joined.empty()) {
      joined.back().begin = std::min(joined.back().begin, part.begin);
      joined.back().end = std::max(joined.back().end, part.end);
    } else {
      joined.push_back(part);
    }
    previous_match = part.match;
  }
  if (backwards) std::reverse(joined.begin(), joined.end());
  parts.swap(joined);
}

}  // namespace

Splitter::Splitter(std::vector<SplitRule> rules, const std::string& where) : rules_(std::move(rules)) {
  for (const SplitRule& rule : rules_) {
    check(!rule.pattern.empty(), ErrorCode::kInvalidArgument, "{}: a split rule has an empty pattern", where);
    regexes_.push_back(std::make_unique<Regex>(rule.pattern, rule.literal, where + ": pre-tokenizer"));
  }
}

// Matches and what lies between them, in order, without gaps.
bool Splitter::each_match(size_t index, std::string_view text, SplitScratch& scratch, const OnPart& body) const {
  const bool invert = rules_[index].invert;
  size_t piece = 0;  // where the text not yet given out begins
  Regex::Span found;
  for (size_t from = 0; from < text.size() && regexes_[index]->find(text, from, scratch.regex_, found);) {
    if (piece < found.begin && !body(piece, found.begin, invert)) return false;  // an empty match separates, too
    if (found.begin < found.end && !body(found.begin, found.end, !invert)) return false;
    piece = from = found.end;
    if (found.begin == found.end) from += static_cast<size_t>(std::max(1, utf8_at(text, from).length));
  }
  return piece == text.size() || body(piece, text.size(), invert);
}

// All of them at once, for behaviours that look at neighbours.
void Splitter::joined_parts(size_t index, std::string_view text, SplitScratch& scratch) const {
  auto& parts = scratch.parts_[index];
  parts.clear();
  each_match(index, text, scratch, [&](size_t begin, size_t end, bool match) {
    parts.push_back({begin, end, match});
    return true;
  });
  if (rules_[index].behavior != Behavior::kIsolated) join_parts(rules_[index].behavior, parts);
}

bool Splitter::cut_valid(size_t index, std::string_view text, SplitScratch& scratch, const OnPiece& body) const {
  const Behavior behavior = rules_[index].behavior;
  const auto go_on = [&](size_t begin, size_t end) {
    return cut(index + 1, text.substr(begin, end - begin), scratch, body);
  };
  if (behavior == Behavior::kIsolated || behavior == Behavior::kRemoved) {
    return each_match(index, text, scratch, [&](size_t begin, size_t end, bool match) {
      return (match && behavior == Behavior::kRemoved) || go_on(begin, end);
    });
  }
  joined_parts(index, text, scratch);
  const auto& parts = scratch.parts_[index];
  return std::all_of(parts.begin(), parts.end(), [&](const auto& part) { return go_on(part.begin, part.end); });
}

bool Splitter::cut_spelled(size_t index, std::string_view bytes, SplitScratch& scratch, const OnPiece& body) const {
  const std::string spelled = spell_bytes(bytes);
  joined_parts(index, spelled, scratch);
  const auto count = [&](size_t begin, size_t end) {
    return static_cast<size_t>(std::count_if(spelled.begin() + static_cast<ptrdiff_t>(begin),
                                             spelled.begin() + static_cast<ptrdiff_t>(end),
                                             [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
  };
  size_t at = 0, byte = 0;  // the same place in the spelling and in the bytes
  for (const auto& part : scratch.parts_[index]) {
    const size_t begin = byte + count(at, part.begin), length = count(part.begin, part.end);
    at = part.end;
    byte = begin + length;
    if (!cut(index + 1, bytes.substr(begin, length), scratch, body)) return false;
  }
  return true;
}

// By the rules from `index` on.
bool Splitter::cut(size_t index, std::string_view piece, SplitScratch& scratch, const OnPiece& body) const {
  if (index == rules_.size()) return body(piece);
  if (rules_[index].spelled) return cut_spelled(index, piece, scratch, body);
  while (!piece.empty()) {
    const size_t good = utf8_valid_prefix(piece);
    if (good > 0 && !cut_valid(index, piece.substr(0, good), scratch, body)) return false;
    size_t bad = good;
    while (bad < piece.size() && utf8_at(piece, bad).length == 0) ++bad;
    if (bad > good && !cut(index + 1, piece.substr(good, bad - good), scratch, body)) return false;
    piece.remove_prefix(bad);
  }
  return true;
}

bool Splitter::each_piece(std::string_view text, SplitScratch& scratch, const OnPiece& body) const {
  if (scratch.parts_.size() < rules_.size()) scratch.parts_.resize(rules_.size());
  return text.empty() || cut(0, text, scratch, body);
}

}  // namespace octet
