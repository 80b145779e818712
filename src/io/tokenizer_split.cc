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

void Splitter::split_valid(size_t index, std::string_view text, SplitScratch& scratch) const {
  const SplitRule& rule = rules_[index];
  auto& parts = scratch.parts_;
  parts.clear();
  const auto add = [&](size_t begin, size_t end, bool match) {
    if (begin < end) parts.push_back({begin, end, match != rule.invert});
  };
  size_t piece = 0;  // where the text not yet given out begins
  Regex::Span found;
  for (size_t from = 0; from < text.size() && regexes_[index]->find(text, from, scratch.regex_, found);) {
    add(piece, found.begin, false);  // an empty match separates, too
    add(found.begin, found.end, true);
    piece = from = found.end;
    if (found.begin == found.end) from += static_cast<size_t>(std::max(1, utf8_at(text, from).length));
  }
  add(piece, text.size(), false);
  if (rule.behavior != Behavior::kIsolated) join_parts(rule.behavior, parts);
}

void Splitter::split_spelled(size_t index, std::string_view bytes, SplitScratch& scratch) const {
  const std::string spelled = spell_bytes(bytes);
  split_valid(index, spelled, scratch);
  const auto count = [&](size_t begin, size_t end) {
    return static_cast<size_t>(std::count_if(spelled.begin() + static_cast<ptrdiff_t>(begin),
                                             spelled.begin() + static_cast<ptrdiff_t>(end),
                                             [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
  };
  size_t at = 0, byte = 0;  // the same place in the spelling and in the bytes
  for (auto& part : scratch.parts_) {
    byte += count(at, part.begin);
    at = part.begin;
    part.begin = byte;
    byte += count(at, part.end);
    at = part.end;
    part.end = byte;
  }
}

const std::vector<std::string_view>& Splitter::split(std::string_view text, SplitScratch& scratch) const {
  scratch.current_.clear();
  if (!text.empty()) scratch.current_.push_back(text);
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    scratch.following_.clear();
    const auto take_parts = [&](std::string_view piece) {
      for (const auto& part : scratch.parts_) {
        scratch.following_.push_back(piece.substr(part.begin, part.end - part.begin));
      }
    };
    for (std::string_view piece : scratch.current_) {
      if (rules_[rule].spelled) {
        split_spelled(rule, piece, scratch);
        take_parts(piece);
        continue;
      }
      while (!piece.empty()) {
        const size_t good = utf8_valid_prefix(piece);
        if (good > 0) {
          split_valid(rule, piece.substr(0, good), scratch);
          take_parts(piece);
        }
        size_t bad = good;
        while (bad < piece.size() && utf8_at(piece, bad).length == 0) ++bad;
        if (bad > good) scratch.following_.push_back(piece.substr(good, bad - good));
        piece.remove_prefix(bad);
      }
    }
    scratch.current_.swap(scratch.following_);
  }
  return scratch.current_;
}

}  // namespace octet
