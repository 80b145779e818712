// Regular expressions of vocabulary files, matched by PCRE2 (JIT, UTF, Unicode properties); its header stays in the
// .cc. The files are written for Oniguruma or Rust's regex: syntax that PCRE2 reads differently is translated, and
// untranslatable syntax is an error that names it. Unbounded backtracking is an error, not a hang.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace octet {

// Match buffers and JIT stack; one per thread.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Regex {
 public:
  struct Span {
    size_t begin = 0, end = 0;
  };

  // `literal`: a plain string. Throws kInvalidArgument with PCRE2's reason and the place when it does not compile.
  Regex(const std::string& pattern, bool literal, const std::string& where);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // The first match at or behind `from` in `text` (valid UTF-8; `from` between characters), which may be empty.
  // Throws kInvalidArgument when the search gives up.
  bool find(std::string_view text, size_t from, RegexScratch& scratch, Span& found) const;

 private:
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace octet
