// What printer and parser of the text form agree on, and the parser's reader of words.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octet::text {

// Characters of names, ops and keys that need no quotes.
inline bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-' || c == '/';
}

// Whether all of the text is one number in range.
template <typename Number>
bool read_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

inline std::string_view trim(std::string_view text) {
  constexpr const char* kBlanks = " \t\r";
  const size_t begin = text.find_first_not_of(kBlanks);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// The parts of a list that are not empty, trimmed; `at` inside brackets separates nothing.
std::vector<std::string_view> split_list(std::string_view text, char at = ',');

// Reads a text from left to right. Blanks, newlines and '#' comments separate and mean nothing else. Every error is
// kInvalidArgument "<where>:<line>:<column>: found ..., expected ...".
class Reader {
 public:
  Reader(std::string_view text, const std::string& where) : text_(text), where_(where) { skip(); }

  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  size_t position() const { return at_; }

  bool accept(char c);                      // consumes c when it is next
  bool accept_word(std::string_view word);  // the same for a whole word
  void expect(char c, const char* what);
  void expect_word(std::string_view word, const char* what);
  std::string_view word(const char* what);  // one or more word characters
  std::string word_or_quoted(const char* what);
  std::string quoted(const char* what);
  int64_t integer(const char* what);

  [[noreturn]] void fail_expected(const char* what) const;
  [[noreturn]] void fail_at(size_t position, const std::string& message) const;

 private:
  void skip();

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace octet::text
