// Pre-tokenisation: cuts text into the pieces inside which BPE may merge, by the regular expressions a vocabulary
// brings. PCRE2 (JIT, UTF, Unicode properties) does the matching; its header stays in the .cc. Bytes that are not valid
// UTF-8 form pieces of their own, so no byte is ever lost.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// GPT-2's pattern, and that of Llama 3 (tiktoken's cl100k with up to three digits a piece).
extern const char* const kGpt2Pattern;
extern const char* const kLlama3Pattern;

struct SplitRule {
  enum class Behavior { kIsolated, kRemoved };
  std::string pattern;
  bool literal = false;  // a plain string, not a regular expression
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;  // the pattern describes what lies between
  bool operator==(const SplitRule&) const = default;
};

// Match buffers and JIT stack; one per thread.
class SplitScratch {
 public:
  SplitScratch();
  ~SplitScratch();
  SplitScratch(const SplitScratch&) = delete;
  SplitScratch& operator=(const SplitScratch&) = delete;

 private:
  friend class Splitter;
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::vector<std::string_view> current_, following_;
};

class Splitter {
 public:
  // Throws kInvalidArgument with PCRE2's reason and the place when a pattern does not compile.
  Splitter(std::vector<SplitRule> rules, const std::string& where);
  ~Splitter();
  Splitter(const Splitter&) = delete;
  Splitter& operator=(const Splitter&) = delete;

  // The pieces of `text`, in order, as views into it; valid until the next call with this scratch.
  const std::vector<std::string_view>& split(std::string_view text, SplitScratch& scratch) const;
  const std::vector<SplitRule>& rules() const { return rules_; }

 private:
  struct Regex;
  void split_valid(const Regex& regex, std::string_view text, SplitScratch& scratch) const;
  std::vector<SplitRule> rules_;
  std::vector<std::unique_ptr<Regex>> regexes_;
};

}  // namespace octet
