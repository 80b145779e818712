// See text_rules.h.
#include "corpus/text_rules.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <bit>

#include "corpus/text_marks.h"
#include "corpus/words.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

int64_t count_chars(std::string_view text) {
  int64_t chars = 0;
  for (const char c : text) chars += (c & 0xC0) != 0x80;
  return chars;
}

int64_t count_of(std::string_view text, std::string_view what) {
  int64_t count = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

constexpr std::string_view kWhite = " \t\r\n\v\f\x1c\x1d\x1e\x1f";
std::string_view strip(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kWhite), text.size());
  return text.substr(begin, text.find_last_not_of(kWhite) + 1 - begin);
}

// Bytes of the end of a line at text[at] as Python's splitlines() has it, or only of '\n'; 0: none.
size_t line_end(std::string_view text, size_t at, bool all) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const uint8_t c = byte(at);
  if (c == '\n') return 1;
  if (!all) return 0;
  if (c == '\r') return byte(at + 1) == '\n' ? 2 : 1;
  if (c == '\v' || c == '\f' || (c >= 0x1c && c <= 0x1e)) return 1;
  if (c == 0xc2) return byte(at + 1) == 0x85 ? 2 : 0;
  return c == 0xe2 && byte(at + 1) == 0x80 && (byte(at + 2) | 1) == 0xa9 ? 3 : 0;  // U+2028, U+2029
}

// Calls body(line) for each line; `all`: of every kind of line end.
template <typename Body>
void each_line(std::string_view text, bool all, Body body) {
  for (size_t begin = 0, at = 0; begin < text.size();) {
    size_t end = 0;
    while (at < text.size() && (end = line_end(text, at, all)) == 0) ++at;
    body(text.substr(begin, at - begin));
    begin = at += end;
  }
}

bool is_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }
bool is_category(uint32_t code, int first, int last) {
  const int category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= first && category <= last;
}

// Whether a character of the word is a letter.
bool has_letter(std::string_view word) {
  for (size_t at = 0; at < word.size();) {
    const Utf8Char character = utf8_at(word, at);
    if (character.code < 0x80 ? is_letter(word[at])
                              : is_category(character.code, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO))
      return true;
    at += static_cast<size_t>(std::max(character.length, 1));
  }
  return false;
}

bool ends_in_sentence_mark(std::string_view line) {
  if (line.empty()) return false;
  size_t at = line.size() - 1;
  while (at > 0 && (line[at] & 0xC0) == 0x80) --at;
  return ends_sentences(utf8_at(line, at).code);
}

bool is_symbols(std::string_view word) {
  if (is_letter(word[0])) return false;
  for (size_t at = 0; at < word.size();) {
    const Utf8Char character = utf8_at(word, at);
    const auto bytes = static_cast<size_t>(std::max(character.length, 1));
    if (!is_mark(character.code, word.substr(at, bytes))) return false;
    at += bytes;
  }
  return true;
}

bool ends_in(std::string_view text, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) { return text.ends_with(ending); });
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

int64_t count_words(std::string_view text) {
  int64_t words = !text.empty() && !is_space(text[0]);
  for (size_t i = 1; i < text.size(); ++i) words += is_space(text[i - 1]) & !is_space(text[i]);
  return words;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// Ends of sentences: a mark and closing quotes before white space or the end; ideographic marks. At least one.
int64_t count_sentences(std::string_view line) {
  int64_t count = count_of(line, "。") + count_of(line, "！") + count_of(line, "？") + count_of(line, "।");
  const auto ends = [](char c) { return c == '.' || c == '!' || c == '?'; };
  for (size_t at = 0; at < line.size();) {
    if (!ends(line[at++])) continue;
    while (at < line.size() && (ends(line[at]) || line[at] == '"' || line[at] == '\'' || line[at] == ')')) ++at;
    count += at == line.size() || line[at] == ' ' || line[at] == '\t' || line.substr(at).starts_with("”");
  }
  return std::max<int64_t>(count, 1);
}

// Without "[12]", "[]", "[edit]", "[citation needed]".
std::string without_citations(std::string_view line) {
  std::string out;
  while (!line.empty()) {
    const size_t open = std::min(line.find('['), line.size());
    out.append(line.substr(0, open));
    line.remove_prefix(open);
    if (line.empty()) break;
    const size_t close = std::min(line.find(']'), line.size());
    const std::string_view inside = line.substr(1, close - 1);
    const bool citation = close < line.size() && (inside == "edit" || inside == "citation needed" ||
                                                  inside.find_first_not_of("0123456789") == std::string_view::npos);
    if (!citation) out += '[';
    line.remove_prefix(citation ? close + 1 : 1);
  }
  return out;
}

}  // namespace

SettingsTable TextRules::table() {
  SettingsTable t;
  const auto share = [&](const std::string& name, double* field, const std::string& meaning) {
    t.add(name, field, {.meaning = meaning, .min = 0, .max = 1});
  };
  const auto count = [&](const std::string& name, int64_t* field, const std::string& meaning) {
    t.add(name, field, {.meaning = meaning, .min = 0});
  };
  t.add("gopher_repetition", &gopher_repetition, {.meaning = "Gopher's rules against repetition"});
  share("gopher_dup_lines", &dup_lines, "most lines that stood before, share of lines");
  share("gopher_dup_paragraphs", &dup_paragraphs, "the same of paragraphs");
  share("gopher_dup_line_chars", &dup_line_chars, "most characters in lines that stood before, share of the text");
  share("gopher_dup_paragraph_chars", &dup_paragraph_chars, "the same of paragraphs");
  for (size_t n = 2; n <= 4; ++n)
    share(fmt::format("gopher_top_{}gram", n), &top_ngram[n - 2],
          fmt::format("most characters in the most frequent {} words, share of the text", n));
  for (size_t n = 5; n <= 10; ++n)
    share(fmt::format("gopher_dup_{}grams", n), &dup_ngrams[n - 5],
          fmt::format("most characters in {} words that stood before, share of the text", n));
  t.add("gopher_quality", &gopher_quality, {.meaning = "Gopher's rules of quality"});
  count("gopher_min_words", &min_words, "fewest words, without those of symbols alone");
  count("gopher_max_words", &max_words, "most words");
  t.add("gopher_min_word_length", &min_word_length, {.meaning = "least mean length of words", .min = 0});
  t.add("gopher_max_word_length", &max_word_length, {.meaning = "greatest mean length of words", .min = 0});
  share("gopher_max_symbols", &max_symbols, "most '#', and most ellipses, a word");
  share("gopher_max_bullets", &max_bullets, "most lines that begin with a bullet, share of lines");
  share("gopher_max_ellipsis_lines", &max_ellipsis_lines, "most lines that end in an ellipsis, share of lines");
  share("gopher_min_alpha", &min_alpha, "fewest words with a letter, share of words");
  count("gopher_min_stop_words", &min_stop_words, "fewest different words of --gopher-stop-words");
  t.add("gopher_stop_words", &stop_words, {.meaning = "frequent words of the language"});
  t.add("c4", &c4, {.meaning = "C4's rules, which take out lines and drop documents"});
  t.add("c4_terminal_punctuation", &c4_terminal_punctuation,
        {.meaning = "take out lines that end in no . ? ! or quote"});
  t.add("c4_citations", &c4_citations, {.meaning = "take out [1], [edit], [citation needed]"});
  t.add("c4_javascript", &c4_javascript, {.meaning = "take out lines with the word javascript"});
  t.add("c4_policy", &c4_policy, {.meaning = "take out lines on cookies, terms of use, privacy policies"});
  count("c4_min_line_words", &c4_min_line_words, "take out lines of fewer words");
  count("c4_max_word_length", &c4_max_word_length, "take out lines with a longer word");
  t.add("c4_lorem_ipsum", &c4_lorem_ipsum, {.meaning = "drop documents with lorem ipsum"});
  t.add("c4_curly_bracket", &c4_curly_bracket, {.meaning = "drop documents with a curly bracket: code"});
  count("c4_min_sentences", &c4_min_sentences, "fewest sentences in the lines that are left");
  t.add("fineweb", &fineweb, {.meaning = "FineWeb's rules"});
  share("fineweb_min_line_punctuation", &min_line_punctuation, "fewest lines that end in punctuation, share of lines");
  share("fineweb_max_short_lines", &max_short_lines, "most short lines, share of lines");
  count("fineweb_short_line", &short_line, "characters of the longest short line");
  share("fineweb_max_dup_chars", &max_dup_chars, "most characters in lines that stood before, share of the text");
  share("fineweb_max_newlines", &max_newlines, "most line ends a word");
  return t;
}

void RuleChecker::split(std::string_view text) {
  words_.clear();
  chars_ = count_chars(text);
  longest_ = 0;
  for (size_t at = 0; at < text.size();) {
    if (is_space(text[at])) {
      ++at;
      continue;
    }
    const size_t begin = at;
    uint32_t chars = 0;
    for (; at < text.size() && !is_space(text[at]); ++at) chars += (text[at] & 0xC0) != 0x80;
    const std::string_view word = text.substr(begin, at - begin);
    words_.push_back({word, hash_bytes(word), chars});
    longest_ = std::max<int64_t>(longest_, chars);
  }
  count_ = std::ssize(words_);
  ngram_words_ = 0;
}

void RuleChecker::clear_slots(size_t entries) { slots_.assign(std::bit_ceil(2 * entries + 1), {0, 0, 0}); }

RuleChecker::Slot& RuleChecker::slot_of(uint64_t hash) {
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask)
    if (slots_[at].count == 0 || slots_[at].hash == hash) return slots_[at].hash = hash, slots_[at];
}

// ngrams_[i] = the hash of the n words from i on; n grows from call to call.
void RuleChecker::hash_ngrams(size_t n) {
  if (ngram_words_ == 0) {
    ngrams_.resize(words_.size());
    for (size_t i = 0; i < words_.size(); ++i) ngrams_[i] = words_[i].hash;
    ngram_words_ = 1;
  }
  for (; ngram_words_ < n; ++ngram_words_)
    for (size_t i = 0; i + ngram_words_ < words_.size(); ++i)
      ngrams_[i] = mix_bits(ngrams_[i] * 0x9e3779b97f4a7c15ull + words_[i + ngram_words_].hash);
}

double RuleChecker::top_share(size_t n) {
  most_ = 0;
  if (words_.size() < n) return 0;
  hash_ngrams(n);
  clear_slots(words_.size());
  uint32_t most = 0, first = 0;
  for (uint32_t i = 0; i + n <= words_.size(); ++i) {
    Slot& slot = slot_of(ngrams_[i]);
    if (slot.count++ == 0) slot.first = i;
    if (slot.count > most || (slot.count == most && slot.first < first)) most = slot.count, first = slot.first;
  }
  most_ = most;
  int64_t chars = static_cast<int64_t>(n) - 1;  // the spaces between
  for (size_t i = first; i < first + n; ++i) chars += words_[i].chars;
  return static_cast<double>(chars * most) / static_cast<double>(chars_);
}

double RuleChecker::repeated_chars(size_t n) {
  if (words_.size() < n) return 0;
  hash_ngrams(n);
  clear_slots(words_.size());
  int64_t chars = 0;
  for (size_t i = 0; i + n <= words_.size();) {
    Slot& slot = slot_of(ngrams_[i]);
    if (slot.count++ == 0) {
      ++i;
      continue;
    }
    for (const size_t end = i + n; i < end; ++i) chars += words_[i].chars;
  }
  return static_cast<double>(chars) / static_cast<double>(chars_);
}

std::string_view RuleChecker::check_repetition(std::string_view text) {
  int64_t parts = 0, repeated = 0, chars = 0;
  const auto note = [&](std::string_view part) {
    ++parts;
    if (slot_of(hash_bytes(part)).count++ == 0) return;
    ++repeated;
    chars += count_chars(part);
  };
  const auto share = [](int64_t part, int64_t all) {
    return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(all, 1));
  };
  const auto lines = static_cast<size_t>(std::ranges::count(text, '\n')) + 2;
  clear_slots(lines);
  for (std::string_view left = strip(text); !left.empty();) {  // between empty lines
    const size_t end = std::min(left.find("\n\n"), left.size());
    note(left.substr(0, end));
    left.remove_prefix(std::min(left.find_first_not_of('\n', end), left.size()));
  }
  if (share(repeated, parts) > rules_.dup_paragraphs) return "gopher_dup_paragraphs";
  if (share(chars, chars_) > rules_.dup_paragraph_chars) return "gopher_dup_paragraph_chars";
  clear_slots(lines);
  parts = repeated = chars = 0;
  each_line(text, false, [&](std::string_view line) {
    if (!line.empty()) note(line);
  });
  // As split("\n+") has it, with an empty line at an end of the text that is a line end.
  if (text.starts_with('\n')) note({});
  if (text.ends_with('\n')) note({});
  if (share(repeated, parts) > rules_.dup_lines) return "gopher_dup_lines";
  if (share(chars, chars_) > rules_.dup_line_chars) return "gopher_dup_line_chars";
  constexpr std::string_view kTop[] = {"gopher_top_2gram", "gopher_top_3gram", "gopher_top_4gram"};
  for (size_t n = 2; n <= 4; ++n) {
    // A longer one stands there no more often: no need to count where even the longest words would not do.
    const auto length = static_cast<double>(static_cast<int64_t>(n) * (longest_ + 1));
    const bool may =
        n == 2 || static_cast<double>(most_) * length > rules_.top_ngram[n - 2] * static_cast<double>(chars_);
    if (may && top_share(n) > rules_.top_ngram[n - 2]) return kTop[n - 2];
  }
  constexpr std::string_view kDup[] = {"gopher_dup_5grams", "gopher_dup_6grams", "gopher_dup_7grams",
                                       "gopher_dup_8grams", "gopher_dup_9grams", "gopher_dup_10grams"};
  for (size_t n = 5; n <= 10; ++n) {
    const double dup = repeated_chars(n);
    if (dup > rules_.dup_ngrams[n - 5]) return kDup[n - 5];
    if (dup == 0) break;  // longer ones do not repeat either
  }
  return "";
}

std::string_view RuleChecker::check_quality(std::string_view text) {
  int64_t words = 0, chars = 0, alpha = 0;
  for (const Word& word : words_) {
    if (has_letter(word.text)) ++alpha;
    if (is_symbols(word.text)) continue;
    ++words;
    chars += word.chars;
  }
  const auto all = static_cast<double>(std::max<size_t>(words_.size(), 1));
  if (words < rules_.min_words) return "gopher_min_words";
  if (words > rules_.max_words) return "gopher_max_words";
  const double length = static_cast<double>(chars) / static_cast<double>(std::max<int64_t>(words, 1));
  if (length < rules_.min_word_length) return "gopher_min_word_length";
  if (length > rules_.max_word_length) return "gopher_max_word_length";
  if (static_cast<double>(std::ranges::count(text, '#')) / all > rules_.max_symbols ||
      static_cast<double>(count_of(text, "...") + count_of(text, "…")) / all > rules_.max_symbols)
    return "gopher_max_symbols";
  double lines = 0, bullets = 0, ellipses = 0;
  each_line(text, true, [&](std::string_view line) {
    const std::string_view body = strip(line);
    ++lines;
    bullets += body.starts_with("•") || body.starts_with('-');
    ellipses += ends_in(body, {"...", "…"});
  });
  if (bullets > rules_.max_bullets * lines) return "gopher_max_bullets";
  if (ellipses > rules_.max_ellipsis_lines * lines) return "gopher_max_ellipsis_lines";
  if (static_cast<double>(alpha) / all < rules_.min_alpha) return "gopher_min_alpha";
  std::vector<bool> seen(rules_.stop_words.size());
  int64_t found = 0;
  for (auto word = words_.begin(); word != words_.end() && found < rules_.min_stop_words; ++word) {
    std::string_view left = word->text;
    while (!left.empty() && is_punctuation(left.front())) left.remove_prefix(1);
    while (!left.empty() && is_punctuation(left.back())) left.remove_suffix(1);
    for (size_t i = 0; i < seen.size(); ++i)
      if (!seen[i] && left == rules_.stop_words[i]) seen[i] = true, ++found;
  }
  return found < rules_.min_stop_words ? "gopher_min_stop_words" : "";
}

std::string_view RuleChecker::apply_c4(std::string_view text, std::string& out) {
  constexpr std::string_view kPolicies[] = {"terms of use", "privacy policy", "cookie policy",
                                            "uses cookies", "use of cookies", "use cookies"};
  lowered_.resize(text.size());
  std::ranges::transform(text, lowered_.begin(), lower);
  const auto holds = [](std::string_view where, std::string_view what) {
    return memmem(where.data(), where.size(), what.data(), what.size()) != nullptr;
  };
  // Most texts have none of them: their lines are not looked at.
  const bool lorem = rules_.c4_lorem_ipsum && holds(lowered_, "lorem ipsum");
  const bool script = rules_.c4_javascript && holds(lowered_, "javascript");
  const bool policy = rules_.c4_policy && (holds(lowered_, "cookie") || holds(lowered_, "terms of use") ||
                                           holds(lowered_, "privacy policy"));
  std::string_view reason;
  int64_t sentences = 0;
  auto word = words_.begin();
  out.clear();
  each_line(text, true, [&](std::string_view line) {
    if (!reason.empty()) return;
    const char* const end = line.data() + line.size();
    const std::string_view small =
        std::string_view(lowered_).substr(static_cast<size_t>(line.data() - text.data()), line.size());
    int64_t words = 0, longest = 0;
    for (; word != words_.end() && word->text.data() < end; ++word, ++words)
      longest = std::max<int64_t>(longest, word->chars);
    line = strip(line);
    if (longest > rules_.c4_max_word_length) return;
    if (rules_.c4_citations && line.find('[') != std::string_view::npos) line = cited_ = without_citations(line);
    if (rules_.c4_terminal_punctuation && (!ends_in(line, {".", "?", "!", "\"", "'"}) || line.ends_with("..."))) return;
    if (words < rules_.c4_min_line_words) return;
    if (lorem && holds(small, "lorem ipsum")) return void(reason = "c4_lorem_ipsum");
    if (script && holds(small, "javascript")) return;
    if (rules_.c4_curly_bracket && line.find('{') != std::string_view::npos) return void(reason = "c4_curly_bracket");
    if (policy && std::ranges::any_of(kPolicies, [&](std::string_view what) { return holds(small, what); })) return;
    sentences += count_sentences(line);
    if (!out.empty()) out += '\n';
    out += line;
  });
  if (reason.empty() && sentences < rules_.c4_min_sentences) reason = "c4_min_sentences";
  if (const std::string_view whole = strip(out); whole.size() < out.size()) out = std::string(whole);
  return reason;
}

std::string_view RuleChecker::check_fineweb(std::string_view text) {
  int64_t lines = 0, punctuated = 0, brief = 0, repeated = 0;
  const int64_t ends = std::ranges::count(text, '\n');
  clear_slots(static_cast<size_t>(ends) + 1);
  each_line(text, false, [&](std::string_view line) {
    if (strip(line).empty()) return;
    const int64_t chars = count_chars(line);
    ++lines;
    punctuated += ends_in_sentence_mark(line);
    brief += chars <= rules_.short_line;
    if (slot_of(hash_bytes(line)).count++ > 0) repeated += chars;
  });
  const auto all = static_cast<double>(std::max<int64_t>(lines, 1));
  if (static_cast<double>(punctuated) / all < rules_.min_line_punctuation) return "fineweb_min_line_punctuation";
  if (static_cast<double>(brief) / all > rules_.max_short_lines) return "fineweb_max_short_lines";
  if (static_cast<double>(repeated) > rules_.max_dup_chars * static_cast<double>(chars_ - ends))
    return "fineweb_max_dup_chars";
  if (static_cast<double>(ends) > rules_.max_newlines * static_cast<double>(count_)) return "fineweb_max_newlines";
  return "";
}

std::string_view RuleChecker::check(std::string_view& text, std::string& buffer) {
  std::string_view reason;
  if (rules_.gopher_repetition || rules_.gopher_quality || rules_.c4 || rules_.fineweb) split(text);
  if (rules_.gopher_repetition && !(reason = check_repetition(text)).empty()) return reason;
  if (rules_.gopher_quality && !(reason = check_quality(text)).empty()) return reason;
  if (rules_.c4) {
    if (!(reason = apply_c4(text, buffer)).empty()) return reason;
    text = buffer;
    chars_ = count_chars(text), count_ = count_words(text);
  }
  return rules_.fineweb ? check_fineweb(text) : reason;
}

}  // namespace octet
