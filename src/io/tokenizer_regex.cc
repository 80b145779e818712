// See tokenizer_regex.h.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "io/tokenizer_regex.h"

#include <pcre2.h>

#include <algorithm>

#include "base/error.h"

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

}  // namespace octet
