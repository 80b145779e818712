#include "chat/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>

#include "io/tokenizer_utf8.h"

namespace octet::jinja {
namespace {

uint32_t upper(uint32_t code) { return static_cast<uint32_t>(utf8proc_toupper(static_cast<int32_t>(code))); }
uint32_t lower(uint32_t code) { return static_cast<uint32_t>(utf8proc_tolower(static_cast<int32_t>(code))); }
int category(uint32_t code) { return utf8proc_category(static_cast<int32_t>(code)); }
bool is_cased(uint32_t code) {
  const int kind = category(code);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT;
}
constexpr size_t kNone = std::string_view::npos;

size_t space_end(std::string_view text, size_t at) {
  for (Utf8Char c = utf8_at(text, at); c.length > 0 && unicode_is_space(c.code); c = utf8_at(text, at))
    at += static_cast<size_t>(c.length);
  return at;
}

size_t space_begin(std::string_view text, size_t end) {
  for (Utf8Char c = utf8_before(text, end); c.length > 0 && unicode_is_space(c.code); c = utf8_before(text, end))
    end -= static_cast<size_t>(c.length);
  return end;
}

bool no_characters(const Value& characters) { return characters.is_undefined() || characters.is(Kind::kNone); }

}  // namespace

Value with_case(Runtime& runtime, const Value& string, LetterCase letters) {
  TextBuilder out(runtime);
  runtime.charge_bytes(string.size * 8);
  bool begins = true;  // of a word, or the text for kCapital
  each_run(string, [&](std::string_view part, Origin origin) {
    std::string changed;
    for (size_t at = 0; at < part.size();) {
      const Utf8Char c = utf8_at(part, at);
      const bool raises = letters == LetterCase::kUpper || (letters != LetterCase::kLower && begins);
      const bool swaps_up = letters == LetterCase::kSwapped && category(c.code) == UTF8PROC_CATEGORY_LL;
      const bool up = letters == LetterCase::kSwapped ? swaps_up : raises;
      if (up && c.code == 0xDF) {
        changed += letters == LetterCase::kUpper || letters == LetterCase::kSwapped ? "SS" : "Ss";
      } else if (c.code < 0x80) {
        const bool small = c.code >= 'a' && c.code <= 'z', large = c.code >= 'A' && c.code <= 'Z';
        changed += static_cast<char>((up && small) || (!up && large) ? c.code ^ 0x20 : c.code);
      } else {
        utf8_append(changed, up ? upper(c.code) : lower(c.code));
      }
      if (letters == LetterCase::kTitle) begins = !is_cased(c.code);
      if (letters == LetterCase::kTitleFilter) {
        const bool opens = c.code < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.code)) != kNone;
        begins = opens || unicode_is_space(c.code);
      }
      if (letters == LetterCase::kCapital) begins = false;
      at += static_cast<size_t>(std::max(c.length, 1));
    }
    out.append(changed, origin);
  });
  return out.finish();
}

Value strip_text(Runtime& runtime, const Value& string, const Value& characters, bool left, bool right) {
  const std::string_view text = string.text();
  const bool spaces = no_characters(characters);
  runtime.check(spaces || characters.is_string(), "strip expects characters, got a {}", type_name(characters));
  const auto goes = [&](const Utf8Char& c, size_t at) {
    if (c.length == 0) return false;
    if (spaces) return unicode_is_space(c.code);
    runtime.charge_bytes(characters.size);
    return characters.text().find(text.substr(at, static_cast<size_t>(c.length))) != kNone;
  };
  size_t begin = 0, end = text.size();
  for (Utf8Char c = utf8_at(text, begin); left && begin < end && goes(c, begin); c = utf8_at(text, begin))
    begin += static_cast<size_t>(c.length);
  while (right && begin < end) {
    const Utf8Char c = utf8_before(text, end);
    const size_t at = end - static_cast<size_t>(c.length);
    if (at < begin || !goes(c, at)) break;
    end = at;
  }
  return cut_text(runtime, string, begin, end);
}

Value replace_text(Runtime& runtime, const Value& string, const Value& from, const Value& to, int64_t limit) {
  runtime.check(from.is_string() && to.is_string(), "replace expects strings, got a {} and a {}", type_name(from),
                type_name(to));
  const std::string_view text = string.text(), old = from.text();
  runtime.charge_bytes(text.size());
  if (limit == 0 || (!old.empty() && text.find(old) == kNone)) return string;
  TextBuilder out(runtime);
  size_t at = 0;
  for (int64_t count = 0; limit < 0 || count < limit; ++count) {
    // An empty string stands before each character and at the end.
    const size_t step = count == 0 || at >= text.size() ? 0 : byte_of_character(text.substr(at), 1);
    const size_t found = old.empty() ? at + step : text.find(old, at);
    if (found == kNone || (old.empty() && count > 0 && at >= text.size())) break;
    runtime.charge();
    out.append(cut_text(runtime, string, at, found));
    out.append(to);
    at = found + old.size();
  }
  out.append(cut_text(runtime, string, at, text.size()));
  return out.finish();
}

Value split_text(Runtime& runtime, const Value& string, const Value& separator, int64_t limit, bool from_right) {
  const std::string_view text = string.text();
  runtime.charge_bytes(text.size());
  std::vector<std::pair<size_t, size_t>> parts;  // in the order they are found
  const auto more = [&] {
    runtime.charge();
    return limit < 0 || std::ssize(parts) < limit;
  };
  if (no_characters(separator)) {
    if (from_right) {
      for (size_t end = space_begin(text, text.size()); end > 0;) {
        size_t begin = more() ? end : 0;
        for (Utf8Char c = utf8_before(text, begin); c.length > 0 && !unicode_is_space(c.code);
             c = utf8_before(text, begin))
          begin -= static_cast<size_t>(c.length);
        parts.emplace_back(begin, end);
        end = space_begin(text, begin);
      }
    } else {
      for (size_t at = space_end(text, 0); at < text.size();) {
        size_t end = more() ? at : text.size();
        for (Utf8Char c = utf8_at(text, end); c.length > 0 && !unicode_is_space(c.code); c = utf8_at(text, end))
          end += static_cast<size_t>(c.length);
        parts.emplace_back(at, end);
        at = space_end(text, end);
      }
    }
  } else {
    runtime.check(separator.is_string() && separator.size > 0, "split expects a non-empty separator");
    const std::string_view mark = separator.text();
    size_t begin = 0, end = text.size();
    while (more()) {
      const size_t found = from_right ? text.substr(0, end).rfind(mark) : text.find(mark, begin);
      if (found == kNone) break;
      from_right ? parts.emplace_back(found + mark.size(), end) : parts.emplace_back(begin, found);
      from_right ? end = found : begin = found + mark.size();
    }
    parts.emplace_back(begin, end);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  const std::span<Value> items = runtime.array<Value>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) items[i] = cut_text(runtime, string, parts[i].first, parts[i].second);
  return make_list(runtime, items);
}

Value split_lines(Runtime& runtime, const Value& string, bool keep_ends) {
  const std::string_view text = string.text();
  runtime.charge_bytes(text.size() * 4);
  std::vector<Value> lines;
  for (size_t begin = 0, at = 0; begin < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    const bool end = c.length > 0 && ((c.code >= 10 && c.code <= 13) || (c.code >= 0x1C && c.code <= 0x1E) ||
                                      c.code == 0x85 || c.code == 0x2028 || c.code == 0x2029);
    const size_t behind = at + static_cast<size_t>(std::max(c.length, 1)) +
                          (c.code == '\r' && text.substr(at + 1).starts_with('\n') ? 1 : 0);
    if (end || at >= text.size()) {
      lines.push_back(cut_text(runtime, string, begin, std::min(keep_ends ? behind : at, text.size())));
      begin = behind;
    }
    at = end ? behind : at + static_cast<size_t>(std::max(c.length, 1));
  }
  return make_list(runtime, lines);
}

Value pad_text(Runtime& runtime, const Value& string, int64_t width, std::string_view fill, char align) {
  const int64_t missing = width - count_characters(string.text());
  if (missing <= 0) return string;
  // Python's center puts the odd one to the left where the width is odd.
  const int64_t before = align == '<' ? 0 : align == '>' ? missing : missing / 2 + (missing & width & 1);
  TextBuilder out(runtime);
  out.repeat(fill, static_cast<size_t>(before), Origin::kTemplate);
  out.append(string);
  out.repeat(fill, static_cast<size_t>(missing - before), Origin::kTemplate);
  return out.finish();
}

Value join_list(Runtime& runtime, std::span<const Value> items, const Value& separator) {
  TextBuilder out(runtime);
  for (size_t i = 0; i < items.size(); ++i) {
    runtime.charge();
    if (i > 0) out.append(separator);
    write(out, items[i]);
  }
  return out.finish();
}

Value indent_text(Runtime& runtime, const Value& string, const Value& indent, bool first, bool blank) {
  const Value lines = split_lines(runtime, string, false);
  TextBuilder out(runtime);
  const auto items = lines.list->items;
  if (first) out.append(indent);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append("\n", Origin::kTemplate);
    if (i > 0 && (blank || items[i].size > 0)) out.append(indent);
    out.append(items[i]);
  }
  const std::string_view text = string.text();  // a line end at the end begins one more line
  if (text.ends_with('\n') || text.ends_with('\r')) {
    out.append("\n", Origin::kTemplate);
    if (blank) out.append(indent);
  }
  return out.finish();
}

bool all_characters(Runtime& runtime, const Value& string, CharacterClass wanted) {
  const std::string_view text = string.text();
  runtime.charge_bytes(text.size() * 8);
  bool any_cased = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    const int kind = category(c.code);
    const bool alpha = kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
    const bool digit = kind == UTF8PROC_CATEGORY_ND;
    bool good = true;
    switch (wanted) {
      case CharacterClass::kAlpha: good = alpha; break;
      case CharacterClass::kDigit: good = digit; break;
      case CharacterClass::kAlphaOrDigit: good = alpha || digit; break;
      case CharacterClass::kSpace: good = unicode_is_space(c.code); break;
      case CharacterClass::kLower: good = kind != UTF8PROC_CATEGORY_LU && kind != UTF8PROC_CATEGORY_LT; break;
      case CharacterClass::kUpper: good = kind != UTF8PROC_CATEGORY_LL && kind != UTF8PROC_CATEGORY_LT; break;
    }
    if (!good) return false;
    any_cased |= is_cased(c.code);
    at += static_cast<size_t>(std::max(c.length, 1));
  }
  const bool by_case = wanted == CharacterClass::kLower || wanted == CharacterClass::kUpper;
  return by_case ? any_cased : !text.empty();
}

}  // namespace octet::jinja
