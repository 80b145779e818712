// Filters: Jinja2's, and tojson as transformers has it.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "chat/jinja_ast.h"
#include "chat/jinja_sequences.h"
#include "chat/jinja_text.h"
#include "io/tokenizer_utf8.h"

namespace octet::jinja {
namespace {

Value text_of(Runtime& runtime, const Call& call) { return to_string(runtime, call.self); }

int64_t integer_or(Runtime& runtime, const Value& value, int64_t otherwise, std::string_view what) {
  return value.is_undefined() || value.is(Kind::kNone) ? otherwise : integer_of(runtime, value, what);
}

template <LetterCase kCase>
Value change_case(Runtime& runtime, const Call& call) {
  return with_case(runtime, text_of(runtime, call), kCase);
}

Value absolute(Runtime& runtime, const Call& call) {
  runtime.check(call.self.is_number(), "abs of a {}", type_name(call.self));
  if (call.self.is(Kind::kFloat)) return Value::of(std::abs(call.self.real), call.self.origin);
  const Value number = Value::of(call.self.as_integer(), call.self.origin);
  return number.integer < 0 ? negated(runtime, number) : number;
}

Value center(Runtime& runtime, const Call& call) {
  const int64_t width = integer_or(runtime, call.args[0], 80, "width");
  return pad_text(runtime, text_of(runtime, call), width, " ", '^');
}

Value default_value(Runtime&, const Call& call) {
  const bool missing = call.self.is_undefined() || (truthy(call.args[1]) && !truthy(call.self));
  if (!missing) return call.self;
  return is_absent(call.args[0]) ? Value::of(std::string_view()) : call.args[0];
}

Value escape(Runtime& runtime, const Call& call) {
  constexpr std::string_view kMarks = "&<>'\"";
  constexpr std::string_view kNames[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  TextBuilder out(runtime);
  each_run(text_of(runtime, call), [&](std::string_view part, Origin origin) {
    for (size_t at = 0; at < part.size();) {
      const size_t found = std::min(part.find_first_of(kMarks, at), part.size());
      out.append(part.substr(at, found - at), origin);
      if (found < part.size()) out.append(kNames[kMarks.find(part[found])], origin);
      at = found + 1;
    }
  });
  return out.finish();
}

// The number that a text begins and ends with, white space and underscores aside.
bool read_number(std::string_view text, double& real, int64_t& integer, bool& whole, int base) {
  std::string digits;
  for (char c : text) {
    if (c != '_' && c != ' ' && c != '\n' && c != '\t' && c != '\r') digits += c;
  }
  const char* begin = digits.data() + (digits.starts_with('+') ? 1 : 0);
  const char* const end = digits.data() + digits.size();
  if (base == 16 && end - begin > 2 && begin[0] == '0' && (begin[1] | 0x20) == 'x') begin += 2;
  const auto read = std::from_chars(begin, end, integer, base);
  whole = read.ec == std::errc() && read.ptr == end;
  if (whole) return real = static_cast<double>(integer), true;
  const auto read_real = std::from_chars(begin, end, real);
  return read_real.ec == std::errc() && read_real.ptr == end;
}

Value to_integer(Runtime& runtime, const Call& call) {
  runtime.check(!call.self.is_undefined(), "'{}' is undefined", call.self.text());
  const Value otherwise = call.args[0].is_undefined() ? Value::of(int64_t{0}) : call.args[0];
  const int64_t base = integer_or(runtime, call.args[1], 10, "base");
  runtime.check(base >= 2 && base <= 36, "int() with base {}", base);
  if (call.self.is_integer()) return Value::of(call.self.as_integer(), call.self.origin);
  double real = 0;
  int64_t integer = 0;
  bool whole = false;
  if (call.self.is(Kind::kFloat)) {
    real = call.self.real;
  } else if (!call.self.is_string() || !read_number(call.self.text(), real, integer, whole, static_cast<int>(base))) {
    return otherwise;
  }
  if (whole) return Value::of(integer, whole_origin(call.self));
  if (!(std::abs(real) < 9.2e18)) return otherwise;
  return Value::of(static_cast<int64_t>(real), whole_origin(call.self));
}

Value to_real(Runtime& runtime, const Call& call) {
  runtime.check(!call.self.is_undefined(), "'{}' is undefined", call.self.text());
  if (call.self.is_number()) return Value::of(call.self.as_real(), call.self.origin);
  double real = 0;
  int64_t integer = 0;
  bool whole = false;
  if (call.self.is_string() && read_number(call.self.text(), real, integer, whole, 10))
    return Value::of(real, whole_origin(call.self));
  return call.args[0].is_undefined() ? Value::of(0.0) : call.args[0];
}

Value round_number(Runtime& runtime, const Call& call) {
  runtime.check(call.self.is_number(), "round of a {}", type_name(call.self));
  const int64_t precision = integer_or(runtime, call.args[0], 0, "precision");
  const std::string_view method = call.args[1].is_string() ? call.args[1].text() : "common";
  runtime.check(method == "common" || method == "ceil" || method == "floor", "round method \"{}\"", method);
  runtime.check(std::abs(precision) <= 300, "round to {} places", precision);
  const double scale = std::pow(10.0, static_cast<double>(precision)), value = call.self.as_real();
  if (method != "common") {
    const double whole = method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale);
    return Value::of(whole / scale, call.self.origin);
  }
  if (call.self.is_integer() && precision >= 0) return Value::of(call.self.as_integer(), call.self.origin);
  double rounded = std::nearbyint(value * scale) / scale;
  if (precision > 0) {  // correctly rounded decimals, as Python does it
    const std::string text = fmt::format("{:.{}f}", value, precision);
    std::from_chars(text.data(), text.data() + text.size(), rounded);
  }
  return call.self.is_integer() ? Value::of(static_cast<int64_t>(rounded), call.self.origin)
                                : Value::of(rounded, call.self.origin);
}

Value format(Runtime& runtime, const Call& call) {
  if (call.keywords.empty())
    return format_percent(runtime, text_of(runtime, call), make_list(runtime, call.args, List::Type::kTuple));
  std::vector<Entry> entries;
  for (const Keyword& keyword : call.keywords) entries.push_back({Value::of(keyword.name), keyword.value});
  return format_percent(runtime, text_of(runtime, call), make_dict(runtime, entries));
}

Value indent(Runtime& runtime, const Call& call) {
  Value by = call.args[0];
  if (!by.is_string()) {
    const int64_t width = std::max<int64_t>(integer_or(runtime, by, 4, "width"), 0);
    TextBuilder blanks(runtime);
    blanks.repeat(" ", static_cast<size_t>(width), Origin::kTemplate);
    by = blanks.finish();
  }
  return indent_text(runtime, text_of(runtime, call), by, truthy(call.args[1]), truthy(call.args[2]));
}

Value replace(Runtime& runtime, const Call& call) {
  const Value from = to_string(runtime, call.args[0]), to = to_string(runtime, call.args[1]);
  return replace_text(runtime, text_of(runtime, call), from, to, integer_or(runtime, call.args[2], -1, "count"));
}

Value to_text(Runtime& runtime, const Call& call) { return text_of(runtime, call); }

Value to_json(Runtime& runtime, const Call& call) {
  JsonStyle style;
  style.ascii = truthy(call.args[0]);
  style.sort_keys = truthy(call.args[3]);
  const Value& indent = call.args[1];
  if (!indent.is_undefined() && !indent.is(Kind::kNone)) {
    style.indented = true;
    style.item_separator = ",";
    if (indent.is_string()) {
      style.indent = indent.text();
    } else {
      const int64_t width = integer_of(runtime, indent, "indent");
      runtime.check(width <= 1000, "tojson: indent {}", width);
      style.indent = runtime.copy(std::string_view(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ')));
    }
  }
  if (const Value& separators = call.args[2]; separators.is(Kind::kList)) {
    const auto items = separators.list->items;
    runtime.check(items.size() == 2 && items[0].is_string() && items[1].is_string(),
                  "tojson: separators must be two strings");
    style.item_separator = items[0].text(), style.key_separator = items[1].text();
  }
  TextBuilder out(runtime);
  write_json(out, call.self, style);
  return out.finish();
}

Value trim(Runtime& runtime, const Call& call) {
  return strip_text(runtime, text_of(runtime, call), call.args[0], true, true);
}

Value truncate(Runtime& runtime, const Call& call) {
  const Value text = text_of(runtime, call);
  const int64_t length = integer_or(runtime, call.args[0], 255, "length");
  const Value end = call.args[2].is_string() ? call.args[2] : Value::of(std::string_view("..."));
  const int64_t leeway = integer_or(runtime, call.args[3], 5, "leeway"), tail = count_characters(end.text());
  runtime.check(length >= tail && leeway >= 0, "truncate to {} characters with an end of {}", length, tail);
  if (count_characters(text.text()) <= length + leeway) return text;
  size_t cut = byte_of_character(text.text(), length - tail);
  if (!truthy(call.args[1])) {
    const size_t space = text.text().substr(0, cut).rfind(' ');
    cut = space == std::string_view::npos ? cut : space;
  }
  return join_texts(runtime, std::array{cut_text(runtime, text, 0, cut), end});
}

Value wordcount(Runtime& runtime, const Call& call) {
  const Value string = text_of(runtime, call);
  const std::string_view text = string.text();
  runtime.charge_bytes(text.size() * 8);
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    const bool word = unicode_is_word(c.code);
    words += word && !inside ? 1 : 0;
    inside = word;
    at += static_cast<size_t>(std::max(c.length, 1));
  }
  return Value::of(words);
}

constexpr Builtin kFilters[] = {
    {"abs", absolute},
    {"attr", attribute, "name"},
    {"batch", batch, "linecount fill_with"},
    {"capitalize", change_case<LetterCase::kCapital>},
    {"center", center, "width"},
    {"count", length},
    {"d", default_value, "default_value boolean"},
    {"default", default_value, "default_value boolean"},
    {"dictsort", dictsort, "case_sensitive by reverse"},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", to_real, "default"},
    {"forceescape", escape},
    {"format", format, nullptr},
    {"groupby", groupby, "attribute default case_sensitive"},
    {"indent", indent, "width first blank"},
    {"int", to_integer, "default base"},
    {"items", items},
    {"join", join, "d attribute"},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", change_case<LetterCase::kLower>},
    {"map", map, nullptr},
    {"max", greatest, "case_sensitive attribute"},
    {"min", least, "case_sensitive attribute"},
    {"reject", reject, nullptr},
    {"rejectattr", rejectattr, nullptr},
    {"replace", replace, "old new count"},
    {"reverse", reverse},
    {"round", round_number, "precision method"},
    {"safe", to_text},
    {"select", select, nullptr},
    {"selectattr", selectattr, nullptr},
    {"slice", slice, "slices fill_with"},
    {"sort", sort, "reverse case_sensitive attribute"},
    {"string", to_text},
    {"sum", sum, "attribute start"},
    {"title", change_case<LetterCase::kTitleFilter>},
    {"tojson", to_json, "ensure_ascii indent separators sort_keys"},
    {"trim", trim, "chars"},
    {"truncate", truncate, "length killwords end leeway"},
    {"unique", unique, "case_sensitive attribute"},
    {"upper", change_case<LetterCase::kUpper>},
    {"wordcount", wordcount},
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Builtin& entry) { return entry.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace octet::jinja
