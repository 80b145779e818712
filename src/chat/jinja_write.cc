// Values as text: Python's str() and repr(), and JSON. Strings keep their origin; what stands between them has that of
// the list or dict it belongs to.
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "chat/jinja_operations.h"
#include "io/tokenizer_utf8.h"

namespace octet::jinja {
namespace {

void write_integer(TextBuilder& out, const Value& value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value.integer).ptr;
  out.append(std::string_view(digits, end), whole_origin(value));
}

bool is_printable(uint32_t code) {
  if (code < 0x80) return code >= ' ' && code != 0x7F;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

void write_quoted(TextBuilder& out, const Value& string) {
  const std::string_view text = string.text();
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  const Origin around = whole_origin(string);
  out.append({&quote, 1}, around);
  each_run(string, [&](std::string_view part, Origin origin) {
    std::string escaped;
    for (size_t at = 0; at < part.size();) {
      const Utf8Char c = utf8_at(part, at);
      const auto length = static_cast<size_t>(std::max(c.length, 1));
      if (c.code == static_cast<uint32_t>(quote) || c.code == '\\') {
        escaped += '\\', escaped += static_cast<char>(c.code);
      } else if (c.code == '\n' || c.code == '\r' || c.code == '\t') {
        escaped += c.code == '\n' ? "\\n" : c.code == '\r' ? "\\r" : "\\t";
      } else if (is_printable(c.code)) {
        escaped += part.substr(at, length);
      } else {
        escaped += c.code < 0x100     ? fmt::format("\\x{:02x}", c.code)
                   : c.code < 0x10000 ? fmt::format("\\u{:04x}", c.code)
                                      : fmt::format("\\U{:08x}", c.code);
      }
      at += length;
    }
    out.append(escaped, origin);
  });
  out.append({&quote, 1}, around);
}

void write_items(TextBuilder& out, const List& list, std::string_view open, std::string_view close) {
  out.append(open, list.origin);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ", list.origin);
    write_repr(out, list.items[i]);
  }
  out.append(close, list.origin);
}

void write_dict(TextBuilder& out, const Dict& dict) {
  out.append(dict.is_namespace ? "<Namespace {" : "{", dict.origin);
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out.append(", ", dict.origin);
    write_repr(out, dict.entries[i].key);
    out.append(": ", dict.origin);
    write_repr(out, dict.entries[i].value);
  }
  out.append(dict.is_namespace ? "}>" : "}", dict.origin);
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char shortest[40];
  const auto end = std::to_chars(shortest, shortest + sizeof(shortest), value, std::chars_format::scientific).ptr;
  std::string_view text(shortest, end);
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  const auto count = static_cast<int>(digits.size());
  std::string out;
  if (exponent < -4 || exponent >= 16) {
    out = digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "") +
          fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out = "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (count <= exponent + 1) {
    out = digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  } else {
    out = digits.insert(static_cast<size_t>(exponent + 1), ".");
  }
  return negative ? "-" + out : out;
}

void write_repr(TextBuilder& out, const Value& value) {
  const Runtime::Nested nested(out.runtime());
  out.runtime().charge();
  switch (value.kind) {
    case Kind::kUndefined: return out.append("Undefined", Origin::kTemplate);
    case Kind::kNone: return out.append("None", whole_origin(value));
    case Kind::kBool: return out.append(value.boolean ? "True" : "False", whole_origin(value));
    case Kind::kInt: return write_integer(out, value);
    case Kind::kFloat: return out.append(float_repr(value.real), whole_origin(value));
    case Kind::kString: return write_quoted(out, value);
    case Kind::kDict: return write_dict(out, *value.dict);
    case Kind::kFunction: return out.append(fmt::format("<{}>", type_name(value)), Origin::kTemplate);
    case Kind::kLoop:
      return out.append(fmt::format("<LoopContext {}/{}>", value.loop->at + 1, value.loop->items.size()),
                        Origin::kTemplate);
    case Kind::kList: break;
  }
  const List& list = *value.list;
  switch (list.type) {
    case List::Type::kList: return write_items(out, list, "[", "]");
    case List::Type::kTuple: return write_items(out, list, "(", list.items.size() == 1 ? ",)" : ")");
    case List::Type::kView: out.append(list.shown, list.origin); return write_items(out, list, "([", "])");
    case List::Type::kRange:
    case List::Type::kGenerator: return out.append(list.shown, list.origin);
  }
}

void write(TextBuilder& out, const Value& value) {
  if (value.is_string()) return out.append(value);
  if (!value.is_undefined()) write_repr(out, value);
}

Value to_string(Runtime& runtime, const Value& value) {
  if (value.is_string()) return value;
  TextBuilder out(runtime);
  write(out, value);
  return out.finish();
}

namespace {

// json.dumps of Python.
class JsonWriter {
 public:
  JsonWriter(TextBuilder& out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Value& value) {
    Runtime& runtime = out_.runtime();
    const Runtime::Nested nested(runtime);
    runtime.charge();
    switch (value.kind) {
      case Kind::kNone: return out_.append("null", whole_origin(value));
      case Kind::kBool: return out_.append(value.boolean ? "true" : "false", whole_origin(value));
      case Kind::kInt: return write_integer(out_, value);
      case Kind::kFloat: return out_.append(real_text(value.real), whole_origin(value));
      case Kind::kString: return quoted(value);
      case Kind::kList:
        if (value.list->type > List::Type::kTuple) break;
        return list(*value.list);
      case Kind::kDict:
        if (value.dict->is_namespace) break;
        return dict(*value.dict);
      default: break;
    }
    runtime.fail("a value of type {} has no JSON form", type_name(value));
  }

 private:
  static std::string real_text(double value) {
    if (std::isnan(value)) return "NaN";
    return std::isinf(value) ? (value < 0 ? "-Infinity" : "Infinity") : float_repr(value);
  }

  void quoted(const Value& string) {
    const Origin around = whole_origin(string);
    out_.append("\"", around);
    each_run(string, [&](std::string_view part, Origin origin) { escaped(part, origin); });
    out_.append("\"", around);
  }

  void escaped(std::string_view text, Origin origin) {
    size_t clean = 0;  // begin of what needs no escape
    for (size_t at = 0; at < text.size();) {
      const auto byte = static_cast<uint8_t>(text[at]);
      if (byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x80 || !style_.ascii)) {
        ++at;
        continue;
      }
      out_.append(text.substr(clean, at - clean), origin);
      const Utf8Char c = utf8_at(text, at);
      out_.append(escape_of(c.code), origin);
      clean = at += static_cast<size_t>(std::max(c.length, 1));
    }
    out_.append(text.substr(clean), origin);
  }

  static std::string escape_of(uint32_t code) {
    constexpr std::string_view kCodes = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    const size_t known = code < 0x80 ? kCodes.find(static_cast<char>(code)) : std::string_view::npos;
    if (known != std::string_view::npos) return {'\\', kLetters[known]};
    if (code < 0x10000) return fmt::format("\\u{:04x}", code);
    const uint32_t rest = code - 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }

  void new_line(Origin origin) {
    if (!style_.indented) return;
    out_.append("\n", origin);
    for (int i = 0; i < level_; ++i) out_.append(style_.indent, origin);
  }

  void list(const List& list) {
    if (list.items.empty()) return out_.append("[]", list.origin);
    out_.append("[", list.origin);
    ++level_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator, list.origin);
      new_line(list.origin);
      write(list.items[i]);
    }
    --level_;
    new_line(list.origin);
    out_.append("]", list.origin);
  }

  void key(const Value& value) {
    if (value.is_string()) return quoted(value);
    out_.runtime().check(value.is_number() || value.is(Kind::kNone), "a key of type {} has no JSON form",
                         type_name(value));
    out_.append("\"", whole_origin(value));
    write(value);
    out_.append("\"", whole_origin(value));
  }

  void dict(const Dict& dict) {
    if (dict.entries.empty()) return out_.append("{}", dict.origin);
    std::vector<Entry> sorted;
    if (style_.sort_keys) {
      sorted.assign(dict.entries.begin(), dict.entries.end());
      std::stable_sort(sorted.begin(), sorted.end(),
                       [&](const Entry& a, const Entry& b) { return compare(out_.runtime(), a.key, b.key) < 0; });
    }
    const std::span<const Entry> entries = style_.sort_keys ? std::span<const Entry>(sorted) : dict.entries;
    out_.append("{", dict.origin);
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator, dict.origin);
      new_line(dict.origin);
      key(entries[i].key);
      out_.append(style_.key_separator, dict.origin);
      write(entries[i].value);
    }
    --level_;
    new_line(dict.origin);
    out_.append("}", dict.origin);
  }

  TextBuilder& out_;
  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

void write_json(TextBuilder& out, const Value& value, const JsonStyle& style) { JsonWriter(out, style).write(value); }

}  // namespace octet::jinja
