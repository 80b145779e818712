#include "eval/porter_stemmer.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace octet {
namespace {

bool is_vowel_letter(char c) { return std::string_view("aeiou").find(c) != std::string_view::npos; }

// Of each letter whether it is a consonant: y is one at the beginning and behind a vowel.
std::vector<bool> consonants(std::string_view word) {
  std::vector<bool> flags;
  for (const char c : word) flags.push_back(!is_vowel_letter(c) && (c != 'y' || flags.empty() || !flags.back()));
  return flags;
}

// How often a consonant follows a vowel.
int measure(std::string_view stem) {
  const std::vector<bool> flags = consonants(stem);
  int count = 0;
  for (size_t i = 1; i < flags.size(); ++i) count += flags[i] && !flags[i - 1];
  return count;
}

bool has_vowel(std::string_view stem) { return std::ranges::count(consonants(stem), false) > 0; }

bool ends_double_consonant(std::string_view word) {
  return word.size() >= 2 && word.back() == word[word.size() - 2] && consonants(word).back();
}

// Consonant, vowel, consonant other than w, x and y; of two letters vowel and consonant.
bool ends_cvc(std::string_view word) {
  const std::vector<bool> flags = consonants(word);
  const size_t size = word.size();
  if (size == 2) return !flags[0] && flags[1];
  return size >= 3 && flags[size - 3] && !flags[size - 2] && flags[size - 1] &&
         std::string_view("wxy").find(word.back()) == std::string_view::npos;
}

struct Rule {
  std::string_view suffix, replacement;
};

// The first rule whose suffix fits, if what remains has more than this measure.
template <size_t kCount>
void apply(std::string& word, const Rule (&rules)[kCount], int least) {
  for (const auto& [suffix, replacement] : rules) {
    if (!word.ends_with(suffix)) continue;
    const std::string_view stem = std::string_view(word).substr(0, word.size() - suffix.size());
    if (measure(stem) > least) word.replace(stem.size(), suffix.size(), replacement);
    return;
  }
}

void step_1a(std::string& word) {
  static constexpr Rule kRules[] = {{"sses", "ss"}, {"ies", "i"}, {"ss", "ss"}, {"s", ""}};
  if (word.ends_with("ies") && word.size() == 4) return word.pop_back();
  apply(word, kRules, -1);
}

void step_1b(std::string& word) {
  if (word.ends_with("ied")) return word.resize(word.size() - (word.size() == 4 ? 1 : 2));
  const std::string_view whole = word;
  if (word.ends_with("eed")) {
    if (measure(whole.substr(0, whole.size() - 3)) > 0) word.pop_back();
    return;
  }
  const size_t cut = word.ends_with("ed") ? 2 : word.ends_with("ing") ? 3 : 0;
  if (cut == 0 || !has_vowel(whole.substr(0, whole.size() - cut))) return;
  word.resize(word.size() - cut);
  const bool lost_e = word.ends_with("at") || word.ends_with("bl") || word.ends_with("iz");
  if (!lost_e && ends_double_consonant(word)) {
    if (std::string_view("lsz").find(word.back()) == std::string_view::npos) word.pop_back();
  } else if (lost_e || (measure(word) == 1 && ends_cvc(word))) {
    word += 'e';
  }
}

void step_1c(std::string& word) {
  const std::string_view stem = std::string_view(word).substr(0, word.size() - 1);
  if (word.ends_with("y") && stem.size() > 1 && consonants(stem).back()) word.back() = 'i';
}

void step_2(std::string& word) {
  static constexpr Rule kRules[] = {{"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"},   {"anci", "ance"},
                                    {"izer", "ize"},    {"bli", "ble"},     {"alli", "al"},     {"entli", "ent"},
                                    {"eli", "e"},       {"ousli", "ous"},   {"ization", "ize"}, {"ation", "ate"},
                                    {"ator", "ate"},    {"alism", "al"},    {"iveness", "ive"}, {"fulness", "ful"},
                                    {"ousness", "ous"}, {"aliti", "al"},    {"iviti", "ive"},   {"biliti", "ble"},
                                    {"fulli", "ful"}};
  const std::string_view whole = word;
  if (word.ends_with("alli") && measure(whole.substr(0, whole.size() - 4)) > 0) {
    word.resize(word.size() - 2);
    return step_2(word);
  }
  if (word.ends_with("logi")) {
    if (measure(whole.substr(0, whole.size() - 3)) > 0) word.pop_back();
    return;
  }
  apply(word, kRules, 0);
}

void step_3(std::string& word) {
  static constexpr Rule kRules[] = {{"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"},
                                    {"ical", "ic"},  {"ful", ""},   {"ness", ""}};
  apply(word, kRules, 0);
}

void step_4(std::string& word) {
  static constexpr Rule kRules[] = {{"al", ""},   {"ance", ""}, {"ence", ""},  {"er", ""},   {"ic", ""},  {"able", ""},
                                    {"ible", ""}, {"ant", ""},  {"ement", ""}, {"ment", ""}, {"ent", ""}, {"ou", ""},
                                    {"ism", ""},  {"ate", ""},  {"iti", ""},   {"ous", ""},  {"ive", ""}, {"ize", ""}};
  const std::string_view whole = word;
  if (!word.ends_with("ion")) return apply(word, kRules, 1);
  const std::string_view stem = whole.substr(0, whole.size() - 3);
  if (measure(stem) > 1 && (stem.ends_with('s') || stem.ends_with('t'))) word.resize(stem.size());
}

void step_5(std::string& word) {
  if (word.ends_with("e")) {
    const std::string_view stem = std::string_view(word).substr(0, word.size() - 1);
    if (measure(stem) > 1 || (measure(stem) == 1 && !ends_cvc(stem))) word.pop_back();
  }
  if (word.ends_with("ll") && measure(std::string_view(word).substr(0, word.size() - 1)) > 1) word.pop_back();
}

}  // namespace

std::string porter_stem(std::string word) {
  static constexpr Rule kIrregular[] = {
      {"sky", "sky"},        {"skies", "sky"},       {"dying", "die"},        {"lying", "lie"},
      {"tying", "tie"},      {"news", "news"},       {"innings", "inning"},   {"inning", "inning"},
      {"outings", "outing"}, {"outing", "outing"},   {"cannings", "canning"}, {"canning", "canning"},
      {"howe", "howe"},      {"proceed", "proceed"}, {"exceed", "exceed"},    {"succeed", "succeed"}};
  if (const auto* found = std::ranges::find(kIrregular, word, &Rule::suffix); found != std::end(kIrregular))
    return std::string(found->replacement);
  if (word.size() <= 2) return word;
  for (void (*step)(std::string&) : {step_1a, step_1b, step_1c, step_2, step_3, step_4, step_5}) step(word);
  return word;
}

}  // namespace octet
