// Regular expressions of vocabulary files, and splitting of text by them (tokenizer_steps.h).
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/error.h"
#include "io/tokenizer_steps.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

// Step limit far above that of real text: unbounded backtracking becomes an error instead of a hang.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kJitStackBytes = 8 << 20;
constexpr const char* kWordClass = "\\p{L}\\p{M}\\p{N}\\p{Pc}";  // Oniguruma's \w

// Oniguruma to PCRE2: \s is Unicode's White_Space (PCRE2's own \s under UCP adds U+180E), \w takes in marks, \h is a
// hexadecimal digit, and a class inside a class is a union, which PCRE2 does not know.
class Translator {
 public:
  Translator(const std::string& pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\') {
        escape(false);
      } else if (pattern_[at_] == '[') {
        ++at_;
        character_class(1);
      } else {
        out_ += pattern_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const char* what) const {
    fail(ErrorCode::kUnsupported, "{}: pattern \"{}\" has {} near byte {}, which is not supported", where_, pattern_,
         what, at_);
  }

  void escape(bool in_class) {
    const char kind = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\\';
    switch (kind) {
      case 's': out_ += "\\p{White_Space}"; break;
      case 'S': out_ += "\\P{White_Space}"; break;
      case 'w': out_ += in_class ? kWordClass : std::string("[") + kWordClass + "]"; break;
      case 'W':
        if (in_class) refuse("\\W inside a class");
        out_ += std::string("[^") + kWordClass + "]";
        break;
      case 'h': out_ += in_class ? "0-9a-fA-F" : "[0-9a-fA-F]"; break;
      case 'H': refuse("\\H");
      case 'b':
      case 'B':
        if (in_class) refuse("\\b inside a class");
        out_ += '\\', out_ += kind;
        break;
      default: out_ += pattern_.substr(at_, 2);
    }
    at_ += std::min<size_t>(2, pattern_.size() - at_);
  }

  // Behind the '[' at `depth`; nested classes lose their brackets.
  void character_class(int depth) {
    if (depth == 1) out_ += '[';
    if (at_ < pattern_.size() && pattern_[at_] == '^') {
      if (depth > 1) refuse("a negated class inside a class");
      out_ += pattern_[at_++];
    }
    if (at_ < pattern_.size() && pattern_[at_] == ']') out_ += "\\]", ++at_;  // first in its class: itself
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '\\') {
        escape(true);
      } else if (pattern_.compare(at_, 2, "[:") == 0 && pattern_.find(":]", at_) != std::string::npos) {
        const size_t end = pattern_.find(":]", at_) + 2;
        out_ += pattern_.substr(at_, end - at_);
        at_ = end;
      } else if (pattern_[at_] == '[') {
        ++at_;
        character_class(depth + 1);
      } else if (pattern_.compare(at_, 2, "&&") == 0) {
        refuse("an intersection of classes (&&)");
      } else {
        out_ += pattern_[at_++];
      }
    }
    if (depth == 1 && at_ < pattern_.size()) out_ += ']';
    at_ = std::min(at_ + 1, pattern_.size());
  }

  const std::string& pattern_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0;
};

std::string message_of(int error) {
  char reason[256];
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(reason), sizeof reason);
  return reason;
}

}  // namespace

struct RegexScratch::Impl {
  pcre2_match_data* match = pcre2_match_data_create(16, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(64 << 10, kJitStackBytes, nullptr);
  Impl() {
    check(match && context && stack, ErrorCode::kOutOfMemory, "PCRE2: no memory for match buffers");
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, kMatchLimit);
  }
  ~Impl() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {}
RegexScratch::~RegexScratch() = default;

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Compiled() { pcre2_code_free(code); }
};

Regex::Regex(const std::string& pattern, bool literal, const std::string& where)
    : pattern_(pattern), compiled_(std::make_unique<Compiled>()) {
  const std::string translated = literal ? pattern : Translator(pattern, where).run();
  const uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP);
  int error = 0;
  size_t offset = 0;
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error,
                                  &offset, nullptr);
  check(compiled_->code != nullptr, ErrorCode::kInvalidArgument,
        "{}: pattern \"{}\" does not compile: {} (near byte {})", where, pattern, message_of(error), offset);
  compiled_->jit = pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;

bool Regex::find(std::string_view text, size_t from, RegexScratch& scratch, Span& found) const {
  pcre2_match_data* match = scratch.impl_->match;
  pcre2_match_context* context = scratch.impl_->context;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto search = compiled_->jit ? pcre2_jit_match : pcre2_match;
  const int result = search(compiled_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, match, context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  check(result >= 0, ErrorCode::kInvalidArgument, "pattern \"{}\" gave up on a text of {} bytes at byte {}: {}",
        pattern_, text.size(), from, message_of(result));
  const size_t* span = pcre2_get_ovector_pointer(match);
  found.begin = std::max(span[0], from);  // \K may move a match's begin
  found.end = std::max(span[1], found.begin);
  return true;
}

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
