#include "tasks/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>

#include "io/tokenizer_utf8.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

constexpr int kMaxDepth = 100;

class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}
  std::optional<ordered_json> read() {
    ordered_json value;
    if (!take_value(value, 0)) return {};
    skip_space();
    return at_ == text_.size() ? std::optional(std::move(value)) : std::nullopt;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool take(char wanted) {
    skip_space();
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  bool take_value(ordered_json& value, int depth) {
    skip_space();
    const char c = peek();
    if (depth > kMaxDepth || c == '\0') return false;
    if (c == '[' || c == '(') return take_list(value, c == '[' ? ']' : ')', depth);
    if (c == '{') return take_dict(value, depth);
    if (c == '\'' || c == '"') return take_strings(value);
    for (const auto& [name, word] : {std::pair("True", ordered_json(true)), std::pair("False", ordered_json(false)),
                                     std::pair("None", ordered_json())})
      if (text_.substr(at_).starts_with(name)) return at_ += std::string_view(name).size(), value = word, true;
    return take_number(value);
  }

  // A tuple of one has a comma; a value in brackets has none.
  bool take_list(ordered_json& value, char end, int depth) {
    ++at_;
    value = ordered_json::array();
    bool comma = false;
    while (!take(end)) {
      if (!value.empty() && !comma) return false;
      ordered_json item;
      if (!take_value(item, depth + 1)) return false;
      value.push_back(std::move(item));
      comma = take(',');
    }
    if (end == ')' && value.size() == 1 && !comma) value = ordered_json(value[0]);
    return true;
  }

  bool take_dict(ordered_json& value, int depth) {
    ++at_;
    value = ordered_json::object();
    bool comma = true;
    while (!take('}')) {
      ordered_json key, item;
      if (!comma || !take_value(key, depth + 1) || !key.is_string() || !take(':') || !take_value(item, depth + 1))
        return false;
      value[key.get<std::string>()] = std::move(item);
      comma = take(',');
    }
    return true;
  }

  // Adjacent ones are joined.
  bool take_strings(ordered_json& value) {
    std::string whole;
    do
      if (!take_string(whole)) return false;
    while (skip_space(), peek() == '\'' || peek() == '"');
    value = std::move(whole);
    return true;
  }

  bool take_string(std::string& out) {
    const char quote = text_[at_];
    const bool triple = text_.substr(at_).starts_with(std::string(3, quote));
    const std::string end(triple ? 3 : 1, quote);
    for (at_ += end.size(); at_ < text_.size();) {
      if (text_.substr(at_).starts_with(end)) return at_ += end.size(), true;
      if (text_[at_] == '\n' && !triple) return false;
      if (text_[at_] != '\\')
        out += text_[at_++];
      else if (!take_escape(out))
        return false;
    }
    return false;
  }

  bool take_escape(std::string& out) {
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (c == '\0') return false;
    at_ += 2;
    if (c == '\n') return true;
    if (const size_t known = kFrom.find(c); known != std::string_view::npos) return out += kTo[known], true;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (digits == 0 && c >= '0' && c <= '7') {
      const size_t begin = at_ - 1;
      while (at_ < text_.size() && at_ < begin + 3 && text_[at_] >= '0' && text_[at_] <= '7') ++at_;
      std::from_chars(text_.data() + begin, text_.data() + at_, code, 8);
      return utf8_append(out, code), true;
    }
    if (digits == 0) return (out += '\\') += c, true;
    if (at_ + digits > text_.size()) return false;
    const char* first = text_.data() + at_;
    if (std::from_chars(first, first + digits, code, 16).ptr != first + digits || code > 0x10FFFF) return false;
    at_ += digits;
    utf8_append(out, code);
    return true;
  }

  bool take_number(ordered_json& value) {
    const size_t begin = at_;
    size_t end = begin;
    while (end < text_.size() && std::string_view("+-.0123456789eE").find(text_[end]) != std::string_view::npos) ++end;
    const std::string_view text = text_.substr(begin, end - begin);
    const char *first = text.data() + (text.starts_with('+') ? 1 : 0), *last = text.data() + text.size();
    int64_t whole = 0;
    double real = 0;
    if (const auto [stop, error] = std::from_chars(first, last, whole); error == std::errc() && stop == last)
      value = whole;
    else if (const auto [real_end, bad] = std::from_chars(first, last, real); bad == std::errc() && real_end == last)
      value = real;
    else
      return false;
    at_ = end;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// repr() of a string: single quotes unless it has some and no double ones.
void append_repr(std::string& out, const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  out += quote;
  for (const char c : text) {
    constexpr std::string_view kFrom = "\n\r\t\\", kTo = "nrt\\";
    if (const size_t known = kFrom.find(c); known != std::string_view::npos)
      (out += '\\') += kTo[known];
    else if (c == quote)
      (out += '\\') += c;
    else
      out += c;
  }
  out += quote;
}

void append_python(std::string& out, const ordered_json& value, bool quoted) {
  switch (value.type()) {
    case ordered_json::value_t::null: out += "None"; return;
    case ordered_json::value_t::boolean: out += value.get<bool>() ? "True" : "False"; return;
    case ordered_json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      return quoted ? append_repr(out, text) : void(out += text);
    }
    case ordered_json::value_t::array:
      out += '[';
      for (size_t i = 0; i < value.size(); ++i) append_python(i > 0 ? out += ", " : out, value[i], true);
      out += ']';
      return;
    case ordered_json::value_t::object: {
      const char* comma = "{";
      if (value.empty()) out += '{';
      for (const auto& [key, member] : value.items()) {
        append_repr(out += std::exchange(comma, ", "), key);
        append_python(out += ": ", member, true);
      }
      out += '}';
      return;
    }
    default: out += value.dump();
  }
}

}  // namespace

std::optional<ordered_json> python_literal(std::string_view text) { return LiteralReader(strip(text)).read(); }

std::string python_str(const ordered_json& value) {
  std::string out;
  append_python(out, value, false);
  return out;
}

std::string_view strip_right(std::string_view text) {
  for (Utf8Char c = utf8_before(text, text.size()); c.length > 0 && unicode_is_space(c.code);
       c = utf8_before(text, text.size()))
    text.remove_suffix(static_cast<size_t>(c.length));
  return text;
}

std::string_view strip(std::string_view text) {
  text = strip_right(text);
  while (begins_with_space(text)) text.remove_prefix(static_cast<size_t>(utf8_at(text, 0).length));
  return text;
}

bool begins_with_space(std::string_view text) {
  const Utf8Char c = text.empty() ? Utf8Char() : utf8_at(text, 0);
  return c.length > 0 && unicode_is_space(c.code);
}

bool ends_with_space(std::string_view text) { return strip_right(text).size() < text.size(); }

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

int64_t character_count(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

int64_t word_count(std::string_view text) {
  int64_t words = 1;
  bool inside = false;  // of white space
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    const bool space = c.length > 0 && unicode_is_space(c.code);
    words += space && !inside ? 1 : 0;
    inside = space;
    at += static_cast<size_t>(std::max(c.length, 1));
  }
  return words;
}

std::string uppercase(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    if (c.length == 0)
      out += text[at++];
    else
      utf8_append(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<int32_t>(c.code)))),
          at += static_cast<size_t>(c.length);
  }
  return out;
}

std::string regex_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (static_cast<uint8_t>(c) < 0x80 && std::isalnum(static_cast<uint8_t>(c)) == 0) out += '\\';
    out += c;
  }
  return out;
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

}  // namespace octet
