// Rules by which published corpora drop documents: Gopher's repetition and quality (Rae et al. 2021, as FineWeb applies
// them), C4's (Raffel et al. 2019), FineWeb's own (Penedo et al. 2024). Words are what white space separates; lengths
// are in characters.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"

namespace octet {

struct TextRules {
  bool gopher_repetition = true, gopher_quality = true, c4 = true, fineweb = true;

  double dup_lines = 0.3, dup_paragraphs = 0.3, dup_line_chars = 0.2, dup_paragraph_chars = 0.2;
  std::array<double, 3> top_ngram = {0.2, 0.18, 0.16};                      // of 2, 3, 4 words
  std::array<double, 6> dup_ngrams = {0.15, 0.14, 0.13, 0.12, 0.11, 0.10};  // of 5 to 10 words

  int64_t min_words = 50, max_words = 100000;
  double min_word_length = 3, max_word_length = 10;
  double max_symbols = 0.1, max_bullets = 0.9, max_ellipsis_lines = 0.3, min_alpha = 0.8;
  int64_t min_stop_words = 2;
  std::vector<std::string> stop_words = {"the", "be", "to", "of", "and", "that", "have", "with"};

  bool c4_terminal_punctuation = false;  // FineWeb leaves it out
  bool c4_citations = true, c4_lorem_ipsum = true, c4_javascript = true, c4_curly_bracket = true, c4_policy = true;
  int64_t c4_min_sentences = 5, c4_min_line_words = 3, c4_max_word_length = 1000;

  double min_line_punctuation = 0.12, max_short_lines = 0.67, max_dup_chars = 0.01, max_newlines = 0.3;
  int64_t short_line = 30;

  SettingsTable table();  // a row for each of them
};

// Applies the rules; one for each thread.
class RuleChecker {
 public:
  explicit RuleChecker(const TextRules& rules) : rules_(rules) {}

  // The first rule that drops the text, such as "gopher_min_words"; "": none. C4's rules take lines out of a text that
  // stays: then `text` is what is left, in `buffer`.
  std::string_view check(std::string_view& text, std::string& buffer);

 private:
  struct Word {
    std::string_view text;
    uint64_t hash;
    uint32_t chars;
  };
  void split(std::string_view text);
  std::string_view check_repetition(std::string_view text);
  std::string_view check_quality(std::string_view text);
  std::string_view apply_c4(std::string_view text, std::string& out);
  std::string_view check_fineweb(std::string_view text);
  double top_share(size_t n);       // characters in the most frequent n-gram
  double repeated_chars(size_t n);  // in n-grams that stood before
  void hash_ngrams(size_t n);

  struct Slot {
    uint64_t hash;
    uint32_t count, first;
  };
  Slot& slot_of(uint64_t hash);  // of a table that the caller empties
  void clear_slots(size_t entries);

  const TextRules& rules_;
  std::vector<Word> words_;
  std::vector<uint64_t> ngrams_;  // hashes
  size_t ngram_words_ = 0;
  std::vector<Slot> slots_;
  int64_t chars_ = 0, count_ = 0;   // of the text: characters, words
  int64_t longest_ = 0, most_ = 0;  // characters of the longest word; times that the most frequent n-gram stands there
  std::string lowered_, cited_;
};

}  // namespace octet
