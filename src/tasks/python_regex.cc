#define PCRE2_CODE_UNIT_WIDTH 8
#include "tasks/python_regex.h"

#include <pcre2.h>

#include <functional>

#include "base/error.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;  // unbounded backtracking becomes an error instead of a hang

std::string message_of(int error) {
  char reason[256];
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(reason), sizeof reason);
  return reason;
}

std::string translated(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    out += pattern[i];
    if (pattern[i] != '\\' || i + 1 == pattern.size()) continue;
    out += pattern[++i] == 'Z' ? 'z' : pattern[i];
  }
  return out;
}

}  // namespace

struct PythonRegex::Impl {
  ~Impl() { pcre2_code_free(code); }
  // Calls body(ovector, pairs) for each match.
  void each(std::string_view text, const std::function<void(const size_t*, size_t)>& body) const {
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
        pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
    const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
        pcre2_match_context_create(nullptr), pcre2_match_context_free);
    check(match && context, ErrorCode::kOutOfMemory, "PCRE2: no memory for match buffers");
    pcre2_set_match_limit(context.get(), kMatchLimit);
    const size_t* span = pcre2_get_ovector_pointer(match.get());
    // Behind an empty match Python looks for one that is not empty at the same place, then goes on.
    uint32_t options = 0;
    for (size_t from = 0; from <= text.size();) {
      const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                     options | PCRE2_NO_UTF_CHECK, match.get(), context.get());
      if (result == PCRE2_ERROR_NOMATCH) {
        if (options == 0) return;
        options = 0;
        from += from < text.size() ? static_cast<size_t>(std::max(utf8_at(text, from).length, 1)) : 1;
        continue;
      }
      check(result >= 0, ErrorCode::kInvalidArgument, "pattern \"{}\" gave up on a text of {} bytes: {}", pattern,
            text.size(), message_of(result));
      body(span, pcre2_get_ovector_count(match.get()));
      from = span[1];
      options = span[0] == span[1] ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : 0;
    }
  }
  pcre2_code* code = nullptr;
  std::string pattern;
};

PythonRegex::PythonRegex(const std::string& pattern, const std::string& where) {
  auto impl = std::make_unique<Impl>();
  const std::string source = translated(pattern);
  int error = 0;
  size_t offset = 0;
  impl->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), PCRE2_UTF | PCRE2_UCP, &error,
                             &offset, nullptr);
  check(impl->code != nullptr, ErrorCode::kInvalidArgument, "{}: pattern \"{}\" does not compile: {} (near byte {})",
        where, pattern, message_of(error), offset);
  impl->pattern = pattern;
  impl_ = std::move(impl);
}

PythonRegex::~PythonRegex() = default;
PythonRegex::PythonRegex(PythonRegex&&) noexcept = default;

std::vector<std::vector<std::string>> PythonRegex::find_all(std::string_view text) const {
  std::vector<std::vector<std::string>> all;
  impl_->each(text, [&](const size_t* span, size_t pairs) {
    std::vector<std::string>& groups = all.emplace_back();
    for (size_t g = pairs > 1 ? 1 : 0; g < pairs; ++g)
      groups.emplace_back(span[2 * g] == PCRE2_UNSET ? "" : text.substr(span[2 * g], span[2 * g + 1] - span[2 * g]));
  });
  return all;
}

std::string PythonRegex::replace(std::string_view text, std::string_view with) const {
  std::string out;
  size_t done = 0;
  impl_->each(text, [&](const size_t* span, size_t pairs) {
    out += text.substr(done, span[0] - done);
    done = span[1];
    for (size_t i = 0; i < with.size(); ++i) {
      const bool group = with[i] == '\\' && i + 1 < with.size() && with[i + 1] >= '1' && with[i + 1] <= '9';
      if (!group) {
        out += with[i];
        continue;
      }
      const auto g = static_cast<size_t>(with[++i] - '0');
      if (g < pairs && span[2 * g] != PCRE2_UNSET) out += text.substr(span[2 * g], span[2 * g + 1] - span[2 * g]);
    }
  });
  return out.append(text.substr(done));
}

}  // namespace octet
