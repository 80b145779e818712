// Pre-tokenisation: splits text into pieces that a model encodes separately, by the vocabulary's regular expressions.
// Bytes that are not valid UTF-8 form pieces of their own, so no byte is ever lost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer_regex.h"

namespace octet {

// GPT-2's pattern, and that of Llama 3 (tiktoken's cl100k with up to three digits a piece).
extern const char* const kGpt2Pattern;
extern const char* const kLlama3Pattern;
// One punctuation character as Hugging Face's Punctuation and BertPreTokenizer mean it: Unicode's and ASCII's symbols.
extern const char* const kPunctuationPattern;

struct SplitRule {
  // What a match becomes: a separate piece, nothing, one piece with adjacent ones of its kind (match or not), a part of
  // the previous piece, a part of the next piece.
  enum class Behavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };
  std::string pattern;
  bool literal = false;  // a plain string, not a regular expression
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;   // the pattern describes the text between matches
  bool spelled = false;  // the pattern sees each byte in GPT-2's spelling (a step behind ByteLevel)
  bool operator==(const SplitRule&) const = default;
};

// Buffers reused between calls; one per thread.
class SplitScratch {
 private:
  friend class Splitter;
  struct Part {
    size_t begin, end;
    bool match;
  };
  RegexScratch regex_;
  std::vector<std::vector<Part>> parts_;  // of each rule
};

class Splitter {
 public:
  // Throws kInvalidArgument with the reason and the place when a pattern does not compile.
  Splitter(std::vector<SplitRule> rules, const std::string& where);
  Splitter(const Splitter&) = delete;
  Splitter& operator=(const Splitter&) = delete;

  // Calls `body` with the pieces of `text`, in order, as views into it, until it returns false; then that is returned.
  // Pieces are passed on as they are found: memory does not grow with the text.
  using OnPiece = std::function<bool(std::string_view)>;
  bool each_piece(std::string_view text, SplitScratch& scratch, const OnPiece& body) const;
  const std::vector<SplitRule>& rules() const { return rules_; }

 private:
  using OnPart = std::function<bool(size_t begin, size_t end, bool match)>;
  bool each_match(size_t rule, std::string_view text, SplitScratch& scratch, const OnPart& body) const;
  void joined_parts(size_t rule, std::string_view text, SplitScratch& scratch) const;
  bool cut(size_t rule, std::string_view piece, SplitScratch& scratch, const OnPiece& body) const;
  bool cut_valid(size_t rule, std::string_view text, SplitScratch& scratch, const OnPiece& body) const;
  bool cut_spelled(size_t rule, std::string_view bytes, SplitScratch& scratch, const OnPiece& body) const;
  std::vector<SplitRule> rules_;
  std::vector<std::unique_ptr<Regex>> regexes_;
};

}  // namespace octet
