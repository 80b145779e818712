// Python's two ways to format text. Numbers are laid out by fmt, whose specifications are Python's.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "chat/jinja_operations.h"

namespace octet::jinja {
namespace {

constexpr size_t kLongestSpec = 32;

// A number by fmt's specification; `spec` is checked for widths beyond the limit first.
template <typename Number>
std::string laid_out(Runtime& runtime, const std::string& spec, Number number) {
  try {
    return fmt::format(fmt::runtime("{:" + spec + "}"), number);
  } catch (const fmt::format_error& error) {
    runtime.fail("format \"{}\": {}", spec, error.what());
  }
}

// The largest number written in `spec`.
int64_t largest_number(std::string_view spec) {
  int64_t largest = 0, number = 0;
  for (char c : spec) {
    number = c >= '0' && c <= '9' ? std::min<int64_t>(number * 10 + (c - '0'), INT32_MAX) : 0;
    largest = std::max(largest, number);
  }
  return largest;
}

// A string with precision and width; `align`: '<', '>' or '^'.
void append_padded(TextBuilder& out, const Value& string, std::string_view fill, char align, int64_t width,
                   int64_t precision) {
  Runtime& runtime = out.runtime();
  runtime.charge_bytes(string.size);
  const size_t end = precision < 0 ? string.size : byte_of_character(string.text(), precision);
  const Value shown = cut_text(runtime, string, 0, end);
  const auto missing = static_cast<size_t>(std::max<int64_t>(width - count_characters(shown.text()), 0));
  const size_t before = align == '<' ? 0 : align == '>' ? missing : missing / 2;
  out.repeat(fill, before, Origin::kTemplate);
  out.append(shown);
  out.repeat(fill, missing - before, Origin::kTemplate);
}

struct Conversion {
  std::string flags;  // of "-+ #0"
  int64_t width = -1, precision = -1;
  char type = 's';
};

void append_percent(TextBuilder& out, const Conversion& how, const Value& value) {
  Runtime& runtime = out.runtime();
  const auto has = [&](char flag) { return how.flags.find(flag) != std::string::npos; };
  if (std::string_view("sra").find(how.type) != std::string_view::npos) {
    TextBuilder text(runtime);
    how.type == 's' ? write(text, value) : write_repr(text, value);
    return append_padded(out, text.finish(), " ", has('-') ? '<' : '>', how.width, how.precision);
  }
  if (how.type == 'c' && value.is_string()) return append_padded(out, value, " ", has('-') ? '<' : '>', how.width, -1);
  runtime.check(value.is_number(), "%{} wants a number, got {}", how.type, type_name(value));
  std::string spec = has('-') ? "<" : has('0') ? "" : ">";
  spec += has('+') ? "+" : has(' ') ? " " : "";
  if (has('#')) spec += '#';
  if (has('0') && !has('-')) spec += '0';
  if (how.width > 0) spec += std::to_string(how.width);
  const bool real = std::string_view("feEgGF").find(how.type) != std::string_view::npos;
  if (real) spec += fmt::format(".{}", how.precision < 0 ? 6 : how.precision);
  spec += how.type == 'i' || how.type == 'u' ? 'd' : how.type;
  if (real) return out.append(laid_out(runtime, spec, value.as_real()), whole_origin(value));
  runtime.check(std::string_view("diuxXoc").find(how.type) != std::string_view::npos, "unknown format %{}", how.type);
  runtime.check(value.is_integer() || std::abs(value.real) < 9e18, "%{} of {}", how.type, float_repr(value.as_real()));
  const int64_t number = value.is_integer() ? value.as_integer() : static_cast<int64_t>(value.real);
  out.append(laid_out(runtime, spec, number), whole_origin(value));
}

}  // namespace

Value format_percent(Runtime& runtime, const Value& format, const Value& values) {
  const bool tuple = values.is(Kind::kList) && values.list->type == List::Type::kTuple;
  const std::span<const Value> given = tuple ? values.list->items : std::span<const Value>(&values, 1);
  const std::string_view text = format.text();
  size_t used = 0, at = 0;
  TextBuilder out(runtime);
  const auto next_value = [&]() -> const Value& {
    runtime.check(used < given.size(), "not enough arguments for the format \"{}\"", text);
    return given[used++];
  };
  const auto peek = [&] {
    runtime.check(at < text.size(), "the format \"{}\" ends in the middle of a conversion", text);
    return text[at];
  };
  const auto number = [&]() -> int64_t {
    if (peek() == '*') return ++at, integer_of(runtime, next_value(), "the width of a format");
    const size_t end = std::min(text.find_first_not_of("0123456789", at), text.size());
    const int64_t value = end == at ? -1 : largest_number(text.substr(at, end - at));
    runtime.check_length(static_cast<size_t>(std::max<int64_t>(value, 0)));
    return at = end, value;
  };
  while (at < text.size()) {
    runtime.charge();
    const size_t percent = std::min(text.find('%', at), text.size());
    out.append(cut_text(runtime, format, at, percent));
    at = percent + 1;
    if (percent == text.size()) break;
    Conversion how;
    Value value = absent();
    if (peek() == '(') {
      const size_t close = text.find(')', at);
      runtime.check(close != std::string_view::npos && values.is(Kind::kDict), "the format \"{}\" needs a dict", text);
      value = get_member(runtime, values, cut_text(runtime, format, at + 1, close));
      runtime.check(!value.is_undefined(), "the format \"{}\": no such key", text);
      at = close + 1, used = 1;
    }
    while (std::string_view("-+ #0").find(peek()) != std::string_view::npos) how.flags += text[at++];
    how.width = number();
    if (peek() == '.') ++at, how.precision = std::max<int64_t>(number(), 0);
    runtime.check(how.width <= INT32_MAX && how.precision <= 1000000, "the format \"{}\" is too wide", text);
    how.type = peek();
    ++at;
    if (how.type == '%') {
      out.append("%", Origin::kTemplate);
    } else {
      append_percent(out, how, is_absent(value) ? next_value() : value);
    }
  }
  const bool by_key = !tuple && (values.is(Kind::kDict) || values.is(Kind::kList));  // may stay unused
  runtime.check(used == given.size() || by_key, "not all arguments of \"{}\" are used", text);
  return out.finish();
}

namespace {

// [[fill]align][sign][#][0][width][,][.precision][type]
void append_spec(TextBuilder& out, const Value& value, std::string_view spec) {
  Runtime& runtime = out.runtime();
  runtime.check(spec.size() <= kLongestSpec, "the format specification \"{}\" is too long", spec);
  runtime.check_length(static_cast<size_t>(largest_number(spec)));
  if (spec.empty()) return write(out, value);
  if (value.is_number()) {
    const char type = spec.back();
    const bool as_real = std::string_view("eEfFgG%").find(type) != std::string_view::npos;
    std::string usual(spec);
    double scale = 1;
    if (type == '%') usual.back() = 'f', scale = 100;
    std::string text;
    if (value.is(Kind::kFloat) || as_real) {
      text = laid_out(runtime, usual, value.as_real() * scale);
    } else {
      text = laid_out(runtime, usual, value.as_integer());
    }
    if (type == '%') text += '%';
    return out.append(text, whole_origin(value));
  }
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^'; };
  std::string_view fill = " ";
  char align = '<';
  const size_t first = byte_of_character(spec, 1);
  if (first < spec.size() && is_align(spec[first])) {
    fill = spec.substr(0, first), align = spec[first];
    spec.remove_prefix(first + 1);
  } else if (is_align(spec[0])) {
    align = spec[0];
    spec.remove_prefix(1);
  }
  int64_t width = 0, precision = -1;
  const char* const end = spec.data() + spec.size();
  const char* at = std::from_chars(spec.data(), end, width).ptr;
  if (at != end && *at == '.') at = std::from_chars(at + 1, end, precision).ptr;
  if (at != end && *at == 's') ++at;
  runtime.check(at == end, "format specification \"{}\" for a {}", spec, type_name(value));
  append_padded(out, to_string(runtime, value), fill, align, width, precision);
}

}  // namespace

Value format_braces(Runtime& runtime, const Value& format, const Call& call) {
  const std::string_view text = format.text();
  TextBuilder out(runtime);
  size_t automatic = 0;
  // name or number, then .attributes and [items]
  const auto find_field = [&](std::string_view field) {
    const size_t name_end = std::min(field.find_first_of(".["), field.size());
    const std::string_view name = field.substr(0, name_end);
    Value value = absent();
    size_t number = 0;
    const bool numbered = std::from_chars(name.data(), name.data() + name.size(), number).ec == std::errc();
    if (name.empty() || numbered) {
      if (name.empty()) number = automatic++;
      runtime.check(number < call.args.size(), "the format \"{}\" has no argument {}", text, number);
      value = call.args[number];
    } else {
      const auto found =
          std::find_if(call.keywords.begin(), call.keywords.end(), [&](const Keyword& k) { return k.name == name; });
      runtime.check(found != call.keywords.end(), "the format \"{}\" has no argument \"{}\"", text, name);
      value = found->value;
    }
    for (std::string_view rest = field.substr(name_end); !rest.empty();) {
      const bool item = rest[0] == '[';
      const size_t end = std::min(item ? rest.find(']') : rest.find_first_of(".[", 1), rest.size());
      const std::string_view key = rest.substr(1, end - 1);
      int64_t index = 0;
      const bool indexed = item && std::from_chars(key.data(), key.data() + key.size(), index).ec == std::errc();
      value = indexed ? get_item(runtime, value, Value::of(index)) : get_member(runtime, value, Value::of(key));
      rest.remove_prefix(std::min(end + (item ? 1 : 0), rest.size()));
    }
    return value;
  };
  for (size_t at = 0; at < text.size();) {
    runtime.charge();
    const size_t brace = std::min(text.find_first_of("{}", at), text.size());
    out.append(cut_text(runtime, format, at, brace));
    if (brace == text.size()) break;
    at = brace + 1;
    if (at < text.size() && text[at] == text[brace]) {
      out.append(cut_text(runtime, format, brace, at++));
      continue;
    }
    const size_t close = text.find('}', at);
    runtime.check(text[brace] == '{' && close != std::string_view::npos, "the format \"{}\" has an unmatched brace",
                  text);
    std::string_view field = text.substr(at, close - at), spec;
    at = close + 1;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1), field = field.substr(0, colon);
    }
    runtime.check(spec.find('{') == std::string_view::npos, "nested format fields are not supported: \"{}\"", text);
    bool repr = false;
    if (const size_t bang = field.find('!'); bang != std::string_view::npos) {
      repr = field.substr(bang) != "!s", field = field.substr(0, bang);
    }
    Value value = find_field(field);
    if (repr) {
      TextBuilder shown(runtime);
      write_repr(shown, value);
      value = shown.finish();
    }
    append_spec(out, value, spec);
  }
  return out.finish();
}

}  // namespace octet::jinja
