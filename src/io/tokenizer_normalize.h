// Normalisation of text before it is cut into tokens, as a chain of steps named and behaving as in Hugging Face's
// tokenizer.json, and SentencePiece's own normaliser. Bytes that are not valid UTF-8 pass through unchanged except
// where a step says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/tokenizer.h"

namespace octet {

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

}  // namespace octet
