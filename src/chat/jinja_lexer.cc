#include "chat/jinja_lexer.h"

#include <algorithm>
#include <charconv>

#include "io/tokenizer_utf8.h"

namespace octet::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         static_cast<uint8_t>(c) >= 0x80;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  Lexer(std::string_view source, Arena& arena, const std::string& where, const TemplateOptions& options)
      : source_(source), arena_(arena), where_(where), options_(options) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      size_t tag = at_;
      do {
        tag = source_.find('{', tag);
        if (tag == kNone || tag + 1 >= source_.size()) tag = source_.size();
      } while (tag < source_.size() && std::string_view("%{#").find(source_[tag + 1]) == kNone && ++tag);
      const size_t begin = at_;
      const std::string_view text = source_.substr(begin, tag - begin);
      if (tag == source_.size()) {
        push_text(text);
        break;
      }
      const char kind = source_[tag + 1];
      size_t inside = tag + 2;
      const char sign = sign_at(inside);
      if (sign != 0) ++inside;
      push_text(stripped(text, begin, sign, kind != '{'));
      advance_to(inside);
      if (kind == '#') {
        skip_comment();
      } else if (kind != '%' || !take_raw()) {
        lex_tag(kind == '%');
      }
    }
    push(TokenKind::kEnd, source_.size());
    return std::move(tokens_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    octet::fail(ErrorCode::kInvalidArgument, "{}:{}: {}", where_, line_,
                fmt::format(format, std::forward<Args>(args)...));
  }

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }
  void advance_to(size_t at) {
    line_ += static_cast<uint32_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                              source_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    at_ = at;
  }
  bool starts(std::string_view text) const { return source_.substr(at_).starts_with(text); }
  size_t space_end(size_t at) const {
    for (Utf8Char c = utf8_at(source_, at); c.length > 0 && unicode_is_space(c.code); c = utf8_at(source_, at))
      at += static_cast<size_t>(c.length);
    return at;
  }
  Token& push(TokenKind kind, size_t end) {
    tokens_.push_back({kind, line_, source_.substr(at_, end - at_)});
    advance_to(end);
    return tokens_.back();
  }
  void push_text(std::string_view text) {
    if (!text.empty()) tokens_.push_back({TokenKind::kText, line_, text});
  }

  // Text before a tag that begins with `sign`, whose `lstrip_blocks` applies to blocks and comments.
  std::string_view stripped(std::string_view text, size_t begin, char sign, bool block) const {
    if (sign == '-') {
      for (Utf8Char c = utf8_before(text, text.size()); c.length > 0 && unicode_is_space(c.code);
           c = utf8_before(text, text.size()))
        text.remove_suffix(static_cast<size_t>(c.length));
      return text;
    }
    if (sign == '+' || !block || !options_.lstrip_blocks) return text;
    const size_t line_begin = text.rfind('\n') + 1;
    if (line_begin == 0 && begin > 0 && source_[begin - 1] != '\n') return text;
    return space_end(begin + line_begin) >= begin + text.size() ? text.substr(0, line_begin) : text;
  }

  // The end of a tag whose closing characters are at `close`, with the white space that belongs to it.
  size_t tag_end(size_t close, char sign, bool block) const {
    const size_t end = close + 2;
    if (sign == '-') return space_end(end);
    const bool trims = block && sign != '+' && options_.trim_blocks;
    return end + (trims && end < source_.size() && source_[end] == '\n' ? 1 : 0);
  }

  void skip_comment() {
    const size_t close = source_.find("#}", at_);
    if (close == kNone) fail("a comment without \"#}}\"");
    const char sign = close > at_ ? sign_at(close - 1) : '\0';
    advance_to(tag_end(close, sign, true));
  }

  // Behind "{%": takes {% raw %}text{% endraw %}; false if this is no such block.
  bool take_raw() {
    size_t at = word_end(at_, "raw");
    if (at == kNone) return false;
    const bool strips = source_.substr(at).starts_with('-');
    if (strips) ++at;
    if (!source_.substr(at).starts_with("%}")) return false;
    advance_to(strips ? space_end(at + 2) : at + 2);
    for (size_t tag = source_.find("{%", at_); tag != kNone; tag = source_.find("{%", tag + 2)) {
      const char begin_sign = sign_at(tag + 2);
      size_t close = word_end(tag + 2 + (begin_sign != 0 ? 1 : 0), "endraw");
      if (close == kNone) continue;
      const char end_sign = sign_at(close);
      if (end_sign != 0) ++close;
      if (!source_.substr(close).starts_with("%}")) continue;
      push_text(stripped(source_.substr(at_, tag - at_), at_, begin_sign, true));
      advance_to(tag_end(close, end_sign, true));
      return true;
    }
    fail("{{% raw %}} without {{% endraw %}}");
  }
  // Where the white space behind `word` ends, if it stands at `at` behind white space.
  size_t word_end(size_t at, std::string_view word) const {
    at = space_end(std::min(at, source_.size()));
    return source_.substr(at).starts_with(word) ? space_end(at + word.size()) : kNone;
  }

  void lex_tag(bool block) {
    push(block ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, at_);
    const std::string_view close = block ? "%}" : "}}";
    std::string open;  // brackets
    for (;;) {
      advance_to(space_end(at_));
      if (at_ >= source_.size()) fail("a tag without \"{}\"", close);
      if (open.empty()) {
        const bool signed_end =
            sign_at(at_) != 0 && source_.substr(at_ + 1).starts_with(close) && (block || source_[at_] == '-');
        if (signed_end || starts(close)) {
          const char sign = signed_end ? source_[at_] : '\0';
          push(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd,
               tag_end(at_ + (signed_end ? 1 : 0), sign, block));
          return;
        }
      }
      const char c = source_[at_];
      if (is_digit(c)) {
        lex_number();
      } else if (is_name_byte(c)) {
        size_t end = at_;
        while (end < source_.size() && is_name_byte(source_[end])) ++end;
        push(TokenKind::kName, end);
      } else if (c == '"' || c == '\'') {
        lex_string();
      } else {
        lex_operator(open);
      }
    }
  }

  void lex_operator(std::string& open) {
    constexpr std::string_view kTwo[] = {"**", "//", "==", "!=", ">=", "<="};
    constexpr std::string_view kOne = "+-*/%~[](){}<>=.:|,";
    const char c = source_[at_];
    size_t length = kOne.find(c) != kNone ? 1 : 0;
    for (std::string_view two : kTwo) length = starts(two) ? 2 : length;
    if (length == 0)
      fail("unexpected character '{}'",
           source_.substr(at_, static_cast<size_t>(std::max(utf8_at(source_, at_).length, 1))));
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail("unexpected '{}'", c);
      open.pop_back();
    }
    push(TokenKind::kOperator, at_ + length);
  }

  void lex_number() {
    std::string digits;
    size_t end = at_;
    const auto take = [&](auto accepts) {
      for (; end < source_.size() && (accepts(source_[end]) || source_[end] == '_'); ++end) {
        if (source_[end] != '_') digits += source_[end];
      }
    };
    int base = 10;
    if (source_[at_] == '0' && at_ + 1 < source_.size()) {
      const char letter = static_cast<char>(source_[at_ + 1] | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    }
    if (base != 10) end += 2;
    take([&](char c) { return base == 16 ? std::isxdigit(static_cast<uint8_t>(c)) != 0 : is_digit(c); });
    bool real = false;
    if (base == 10 && (at_ == 0 || source_[at_ - 1] != '.')) {
      const auto digit_at = [&](size_t at) { return at < source_.size() && is_digit(source_[at]); };
      if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
        real = true, digits += '.', ++end;
        take(is_digit);
      }
      const size_t exponent = end + 1 + (sign_at(end + 1) != 0 ? 1 : 0);
      if (end < source_.size() && (source_[end] | 0x20) == 'e' && digit_at(exponent)) {
        real = true, digits += 'e';
        if (source_[end + 1] == '-') digits += '-';
        end = exponent;
        take(is_digit);
      }
    }
    Value value;
    std::from_chars_result read{};
    if (real) {
      double number = 0;
      read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      value = Value::of(number);
    } else {
      int64_t number = 0;
      read = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
      value = Value::of(number);
    }
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size())
      fail("the number {} cannot be held", source_.substr(at_, std::min<size_t>(end - at_, 40)));
    push(TokenKind::kNumber, end).value = value;
  }

  void lex_string() {
    size_t end = at_ + 1;
    bool escaped = false;
    for (; end < source_.size() && source_[end] != source_[at_]; ++end) {
      if (source_[end] == '\\') escaped = true, ++end;
    }
    if (end >= source_.size()) fail("a string without its closing {}", source_[at_]);
    const std::string_view body = source_.substr(at_ + 1, end - at_ - 1);
    const Value value = Value::of(escaped ? arena_.copy(unescaped(body)) : body);
    push(TokenKind::kString, end + 1).value = value;
  }

  // As Python reads a string literal; an unknown escape stays as it is.
  std::string unescaped(std::string_view text) const {
    std::string out;
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] != '\\' || at + 1 == text.size()) {
        out += text[at];
        continue;
      }
      const char c = text[++at];
      constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeant = "\\'\"\a\b\f\n\r\t\v";
      const size_t known = kLetters.find(c);
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      if (c == '\n') continue;
      if (known != kNone) {
        out += kMeant[known];
      } else if (digits > 0 || (c >= '0' && c < '8')) {
        uint32_t code = 0;
        const char* const from = text.data() + at + (digits > 0 ? 1 : 0);
        const char* const limit = std::min(from + (digits > 0 ? digits : 3), text.data() + text.size());
        const auto read = std::from_chars(from, limit, code, digits > 0 ? 16 : 8);
        if (digits > 0 && read.ptr != from + digits) fail("a string with a truncated \\{} escape", c);
        utf8_append(out, code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0xFFFD : code);
        at = static_cast<size_t>(read.ptr - text.data()) - 1;
      } else {
        out += '\\', out += c;
      }
    }
    return out;
  }

  std::string_view source_;
  Arena& arena_;
  const std::string& where_;
  const TemplateOptions& options_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(std::string& source, Arena& arena, const std::string& where, const TemplateOptions& options) {
  const size_t valid = utf8_valid_prefix(source);
  check(valid == source.size(), ErrorCode::kInvalidArgument, "{}: not UTF-8 at byte {}", where, valid);
  size_t kept = 0;
  for (size_t at = 0; at < source.size(); ++at) {
    if (source[at] == '\r' && at + 1 < source.size() && source[at + 1] == '\n') continue;
    source[kept++] = source[at] == '\r' ? '\n' : source[at];
  }
  source.resize(kept);
  if (source.ends_with('\n')) source.pop_back();
  return Lexer(source, arena, where, options).run();
}

}  // namespace octet::jinja
