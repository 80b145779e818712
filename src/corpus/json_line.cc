// See json_line.h: a scanner of RFC 8259 that keeps nothing.
#include "corpus/json_line.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

constexpr int kDeepest = 512;
constexpr size_t kBlock = 32;

constexpr bool ends_run(char c) { return c == '"' || c == '\\' || static_cast<uint8_t>(c) < 0x20; }

// The first place from `at` on that is a quote, backslash or control character. Whole blocks are tested at once.
size_t find_special(std::string_view line, size_t at) {
  for (; at + kBlock <= line.size(); at += kBlock) {
    uint8_t any = 0;
    const char* block = line.data() + at;
    for (size_t i = 0; i < kBlock; ++i) any |= static_cast<uint8_t>(ends_run(block[i]));
    if (any) break;
  }
  while (at < line.size() && !ends_run(line[at])) ++at;
  return at;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 32);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

class Scanner {
 public:
  Scanner(std::string_view line, const std::string& where) : line_(line), where_(where) {
    if (line_.starts_with("\xEF\xBB\xBF")) at_ = 3;
  }

  JsonLine object(std::string_view text_key, std::string_view id_key) {
    JsonLine found;
    bool has_text = false, is_string = false;
    std::string buffer;
    blank();
    check(peek() == '{', ErrorCode::kCorrupt, "{}: the line is not a JSON object", where_);
    ++at_;
    members('}', [&] {
      const std::string_view key = unescape_json(string(), buffer);
      const bool is_text = key == text_key, is_id = key == id_key;
      colon();
      const size_t begin = at_;
      value(1);
      if (is_text) {
        has_text = true;
        is_string = line_[begin] == '"';
        found.begin = begin, found.end = at_;
        if (is_string) found.text = line_.substr(begin + 1, at_ - begin - 2);
      }
      if (is_id) found.id = line_.substr(begin, at_ - begin);
    });
    blank();
    if (at_ < line_.size()) damaged("want the end of the line");
    check(has_text, ErrorCode::kCorrupt, "{}: no key \"{}\" (--key names that of the text)", where_, text_key);
    check(is_string, ErrorCode::kCorrupt, "{}: key \"{}\" is not a string", where_, text_key);
    return found;
  }

 private:
  [[noreturn]] void damaged(const char* want) const {
    fail(ErrorCode::kCorrupt, "{}: damaged JSON at byte {} of the line: {}", where_, at_, want);
  }
  char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  void blank() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) ++at_;
  }
  void colon() {
    blank();
    if (peek() != ':') damaged("want a colon");
    ++at_;
    blank();
  }
  // The parts of an object or array behind its bracket.
  template <typename Each>
  void members(char close, Each each) {
    blank();
    if (peek() == close) return void(++at_);
    for (;;) {
      blank();
      each();
      blank();
      if (peek() == close) return void(++at_);
      if (peek() != ',') damaged(close == '}' ? "want a comma or '}'" : "want a comma or ']'");
      ++at_;
    }
  }
  std::string_view string() {
    if (peek() != '"') damaged("want a string");
    const size_t begin = ++at_;
    for (;;) {
      at_ = find_special(line_, at_);
      if (at_ >= line_.size()) damaged("the string does not end");
      if (line_[at_] == '"') return line_.substr(begin, at_++ - begin);
      if (line_[at_] != '\\') damaged("a control character in a string");
      const char escaped = at_ + 1 < line_.size() ? line_[at_ + 1] : '\0';
      if (escaped == 'u') {
        for (size_t i = 2; i < 6; ++i)
          if (at_ + i >= line_.size() || hex_digit(line_[at_ + i]) < 0) damaged("want four hexadecimal digits");
        at_ += 6;
      } else if (std::string_view("\"\\/bfnrt").find(escaped) != std::string_view::npos) {
        at_ += 2;
      } else {
        damaged("an unknown escape");
      }
    }
  }
  void digits() {
    const size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    if (at_ == begin) damaged("want a digit");
  }
  void number() {
    if (peek() == '-') ++at_;
    if (peek() == '0')
      ++at_;
    else
      digits();
    if (peek() == '.') ++at_, digits();
    if ((peek() | 32) == 'e') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
  }
  void value(int depth) {
    if (depth > kDeepest) damaged("nested deeper than 512 levels");
    const char first = peek();
    if (first == '"') return void(string());
    if (first == '{') {
      ++at_;
      return members('}', [&] { string(), colon(), value(depth + 1); });
    }
    if (first == '[') {
      ++at_;
      return members(']', [&] { value(depth + 1); });
    }
    for (const std::string_view word : {"true", "false", "null"})
      if (line_.substr(at_).starts_with(word)) return void(at_ += word.size());
    if (first != '-' && !(first >= '0' && first <= '9')) damaged("want a value");
    number();
  }

  std::string_view line_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

JsonLine scan_json_line(std::string_view line, std::string_view text_key, std::string_view id_key,
                        const std::string& where) {
  return Scanner(line, where).object(text_key, id_key);
}

std::string_view unescape_json(std::string_view text, std::string& buffer) {
  if (text.find('\\') == std::string_view::npos) return text;
  buffer.clear();
  const auto unit = [&](size_t at) {  // of \uXXXX; -1: not there
    if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return -1;
    int code = 0;
    for (size_t i = 2; i < 6; ++i) code = code * 16 + hex_digit(text[at + i]);
    return code;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t escape = std::min(text.find('\\', at), text.size());
    buffer.append(text.substr(at, escape - at));
    at = escape;
    if (at + 1 >= text.size()) break;
    constexpr std::string_view kNames = "bfnrt", kMeant = "\b\f\n\r\t";
    if (const size_t name = kNames.find(text[at + 1]); name != std::string_view::npos) {
      buffer += kMeant[name], at += 2;
    } else if (text[at + 1] != 'u') {
      buffer += text[at + 1], at += 2;
    } else {
      int code = unit(at);
      at += 6;
      if (code >= 0xD800 && code < 0xDC00) {
        const int low = unit(at);
        const bool pair = low >= 0xDC00 && low < 0xE000;
        code = pair ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : 0xFFFD;
        if (pair) at += 6;
      } else if (code >= 0xDC00 && code < 0xE000) {
        code = 0xFFFD;
      }
      utf8_append(buffer, static_cast<uint32_t>(code));
    }
  }
  return buffer;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const size_t special = find_special(text, at);
    out.append(text.substr(at, special - at));
    if (special == text.size()) break;
    const char c = text[special];
    constexpr std::string_view kNames = "\"\\bfnrt", kMeant = "\"\\\b\f\n\r\t";
    if (const size_t name = kMeant.find(c); name != std::string_view::npos)
      out += '\\', out += kNames[name];
    else
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    at = special + 1;
  }
  out += '"';
}

}  // namespace octet
