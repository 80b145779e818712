// Steps that text takes before a model encodes it: regular expressions of vocabulary files, splitting by them, and
// normalisation. Bytes that are not valid UTF-8 pass through unchanged except where a step says otherwise: no byte is
// lost by splitting.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/tokenizer.h"

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

// Matched by PCRE2 (JIT, UTF, Unicode properties); its header stays in the .cc. The files are written for Oniguruma or
// Rust's regex: syntax that PCRE2 reads differently is translated, and untranslatable syntax is an error that names it.
// Unbounded backtracking is an error, not a hang.
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
// By their names in tokenizer.json, in the order of the enumerators.
inline constexpr const char* kSplitBehaviors[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                                  "MergedWithNext"};

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

// Pre-tokenisation: splits text into pieces that a model encodes separately, by the vocabulary's regular expressions.
// Bytes that are not valid UTF-8 form pieces of their own.
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

// Normalisation of text before it is cut into pieces, as a chain of steps named and behaving as in Hugging Face's
// tokenizer.json, and SentencePiece's own normaliser.
class TextNormalizer {
 public:
  using Step = std::function<std::string(std::string_view text, const TextPlace& place)>;

  bool empty() const { return steps_.empty(); }
  const std::string& name() const { return name_; }  // of all steps: equal names, equal results
  void add(const std::string& name, Step step);
  std::string apply(std::string_view text, const TextPlace& place) const;

 private:
  std::vector<Step> steps_;
  std::string name_;
};

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normal_form(NormalForm form, std::string_view text);

std::string lowercase(std::string_view text);
std::string strip_accents(std::string_view text);                        // removes marks (Mn, Mc, Me)
std::string strip_spaces(std::string_view text, bool left, bool right);  // removes white space at the ends

struct BertCleaning {
  bool clean_text = true;            // removes control characters; white space becomes ' '
  bool handle_chinese_chars = true;  // spaces around ideographs
  bool strip_accents = true;         // after NFD
  bool lowercase = true;
};
std::string bert_clean(const BertCleaning& what, std::string_view text);

// Replaces every match; throws like Regex.
TextNormalizer::Step replace_step(const std::string& pattern, bool literal, const std::string& content,
                                  const std::string& where);
// Prepends `text` to every non-empty piece that does not continue an earlier text.
TextNormalizer::Step prepend_step(const std::string& text);

// U+2581, SentencePiece's symbol for a space.
inline constexpr const char* kSpaceMark = "\xE2\x96\x81";
void append_replaced(std::string& out, std::string_view text, std::string_view from, std::string_view to);
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// GPT-2's spelling of bytes: 0x21..0x7E, 0xA1..0xAC, 0xAE..0xFF map to themselves, the others to U+0100 onwards.
const std::array<std::string, 256>& byte_spellings();
std::string spell_bytes(std::string_view bytes);
// False when a character of `text` is not the spelling of a byte.
bool unspell_bytes(std::string_view text, std::string& bytes);

}  // namespace octet
