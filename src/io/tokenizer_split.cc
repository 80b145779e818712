// See tokenizer_split.h. Patterns written for Oniguruma are adjusted where PCRE2 reads them differently: \s becomes
// Unicode's White_Space (PCRE2's own \s under UCP adds U+180E).
#define PCRE2_CODE_UNIT_WIDTH 8
#include "io/tokenizer_split.h"

#include <pcre2.h>

#include <algorithm>

#include "base/error.h"
#include "io/tokenizer_utf8.h"

namespace octet {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// A step count no sane text reaches; a pattern that backtracks without end becomes an error instead of a hang.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kJitStackBytes = 8 << 20;

std::string to_pcre(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    ++i;
    if (pattern[i] == 's') {
      out += "\\p{White_Space}";
    } else if (pattern[i] == 'S') {
      out += "\\P{White_Space}";
    } else {
      out += '\\', out += pattern[i];
    }
  }
  return out;
}

}  // namespace

struct SplitScratch::Impl {
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

SplitScratch::SplitScratch() : impl_(std::make_unique<Impl>()) {}
SplitScratch::~SplitScratch() = default;

struct Splitter::Regex {
  pcre2_code* code = nullptr;
  bool jit = false;
  SplitRule rule;
  ~Regex() { pcre2_code_free(code); }
};

Splitter::Splitter(std::vector<SplitRule> rules, const std::string& where) : rules_(std::move(rules)) {
  for (const SplitRule& rule : rules_) {
    check(!rule.pattern.empty(), ErrorCode::kInvalidArgument, "{}: a split rule has an empty pattern", where);
    auto regex = std::make_unique<Regex>();
    regex->rule = rule;
    const std::string pattern = rule.literal ? rule.pattern : to_pcre(rule.pattern);
    const uint32_t options = PCRE2_UTF | (rule.literal ? PCRE2_LITERAL : PCRE2_UCP);
    int error = 0;
    size_t offset = 0;
    regex->code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr);
    if (regex->code == nullptr) {
      char reason[256];
      pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(reason), sizeof reason);
      fail(ErrorCode::kInvalidArgument, "{}: pre-tokenizer pattern \"{}\" does not compile: {} (near byte {})", where,
           rule.pattern, reason, offset);
    }
    regex->jit = pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE) == 0;
    regexes_.push_back(std::move(regex));
  }
}

Splitter::~Splitter() = default;

void Splitter::split_valid(const Regex& regex, std::string_view text, SplitScratch& scratch) const {
  pcre2_match_data* match = scratch.impl_->match;
  pcre2_match_context* context = scratch.impl_->context;
  const size_t* span = pcre2_get_ovector_pointer(match);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto emit = [&](size_t begin, size_t end, bool matched) {
    if (begin == end) return;
    if (regex.rule.behavior == SplitRule::Behavior::kRemoved && matched != regex.rule.invert) return;
    scratch.following_.push_back(text.substr(begin, end - begin));
  };
  size_t piece = 0, at = 0;  // [piece, at) is text passed over without a match
  while (at < text.size()) {
    const int result = regex.jit
                           ? pcre2_jit_match(regex.code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, match, context)
                           : pcre2_match(regex.code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, match, context);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      char reason[256];
      pcre2_get_error_message(result, reinterpret_cast<PCRE2_UCHAR*>(reason), sizeof reason);
      fail(ErrorCode::kInvalidArgument, "pre-tokenizer pattern \"{}\" gave up on a text of {} bytes at byte {}: {}",
           regex.rule.pattern, text.size(), at, reason);
    }
    const size_t begin = std::max(span[0], at), end = std::max(span[1], begin);  // \K may move a match's begin
    if (end == begin) {  // an empty match separates nothing: step over one character
      at = begin < text.size() ? begin + static_cast<size_t>(utf8_at(text, begin).length) : begin + 1;
      continue;
    }
    emit(piece, begin, false);
    emit(begin, end, true);
    piece = at = end;
  }
  emit(piece, text.size(), false);
}

const std::vector<std::string_view>& Splitter::split(std::string_view text, SplitScratch& scratch) const {
  scratch.current_.clear();
  if (!text.empty()) scratch.current_.push_back(text);
  for (const auto& regex : regexes_) {
    scratch.following_.clear();
    for (std::string_view piece : scratch.current_) {
      while (!piece.empty()) {
        const size_t good = utf8_valid_prefix(piece);
        if (good > 0) split_valid(*regex, piece.substr(0, good), scratch);
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
