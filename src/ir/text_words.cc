#include "ir/text_words.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace octet::text {

std::vector<std::string_view> split_list(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size()) depth += (text[i] == '[') - (text[i] == ']');
    if (i < text.size() && (text[i] != at || depth > 0)) continue;
    if (std::string_view part = trim(text.substr(begin, i - begin)); !part.empty()) parts.push_back(part);
    begin = i + 1;
  }
  return parts;
}

void Reader::skip() {
  while (at_ < text_.size()) {
    char c = text_[at_];
    if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
      ++at_;
    } else {
      break;
    }
  }
}

void Reader::fail_at(size_t position, const std::string& message) const {
  std::string_view before = text_.substr(0, position);
  auto line = std::ranges::count(before, '\n') + 1;
  size_t start = before.rfind('\n');
  size_t column = start == std::string_view::npos ? position + 1 : position - start;
  fail(ErrorCode::kInvalidArgument, "{}:{}:{}: {}", where_, line, column, message);
}

void Reader::fail_expected(const char* what) const {
  std::string found = "the end of the text";
  if (!at_end()) {
    size_t size = 0;
    while (at_ + size < text_.size() && size < 24 && is_word_char(text_[at_ + size])) ++size;
    size = std::max<size_t>(size, 1);
    auto byte = static_cast<unsigned char>(text_[at_]);
    bool printable = byte >= 0x20 && byte < 0x7f;
    found = printable ? fmt::format("'{}'", text_.substr(at_, size)) : fmt::format("byte 0x{:02x}", byte);
  }
  fail_at(at_, fmt::format("found {}, expected {}", found, what));
}

bool Reader::accept(char c) {
  if (at_end() || text_[at_] != c) return false;
  ++at_;
  skip();
  return true;
}

void Reader::expect(char c, const char* what) {
  if (!accept(c)) fail_expected(what);
}

bool Reader::accept_word(std::string_view word) {
  size_t end = at_ + word.size();
  if (text_.substr(at_, word.size()) != word || (end < text_.size() && is_word_char(text_[end]))) return false;
  at_ = end;
  skip();
  return true;
}

void Reader::expect_word(std::string_view word, const char* what) {
  if (!accept_word(word)) fail_expected(what);
}

std::string_view Reader::word(const char* what) {
  size_t end = at_;
  while (end < text_.size() && is_word_char(text_[end])) ++end;
  if (end == at_) fail_expected(what);
  std::string_view found = text_.substr(at_, end - at_);
  at_ = end;
  skip();
  return found;
}

std::string Reader::word_or_quoted(const char* what) { return peek() == '"' ? quoted(what) : std::string(word(what)); }

std::string Reader::quoted(const char* what) {
  if (peek() != '"') fail_expected(what);
  size_t begin = at_++;
  std::string result;
  while (true) {
    if (at_ >= text_.size()) fail_at(begin, "the string that begins here has no end");
    char c = text_[at_++];
    if (c == '"') break;
    if (c != '\\') {
      result.push_back(c);
      continue;
    }
    char escape = at_ < text_.size() ? text_[at_++] : '\0';
    if (escape == '"' || escape == '\\') {
      result.push_back(escape);
    } else if (escape == 'x') {
      unsigned byte = 0;
      const char* digits = text_.data() + std::min(at_, text_.size());
      const char* end = text_.data() + std::min(at_ + 2, text_.size());
      auto [stop, error] = std::from_chars(digits, end, byte, 16);
      if (error != std::errc() || stop != digits + 2) fail_at(at_, "found no two hex digits after \\x");
      result.push_back(static_cast<char>(byte));
      at_ += 2;
    } else {
      fail_at(at_ - 1, "found an unknown escape, expected \\\", \\\\ or \\xNN");
    }
  }
  skip();
  return result;
}

int64_t Reader::integer(const char* what) {
  size_t begin = at_;
  if (peek() != '-' && (peek() < '0' || peek() > '9')) fail_expected(what);
  std::string_view found = word(what);
  int64_t value = 0;
  if (!read_number(found, value)) fail_at(begin, fmt::format("found '{}', expected {}", found.substr(0, 40), what));
  return value;
}

}  // namespace octet::text
