// See tokenizer_utf8.h. Pure functions over bytes, in utf8proc where they leave ASCII; ASCII runs are skipped eight
// bytes at a time.
#include "io/tokenizer_utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

namespace octet {

Utf8Char utf8_at(std::string_view text, size_t at) {
  if (at >= text.size()) return {};
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
  if (*bytes < 0x80) return {*bytes, 1};
  utf8proc_int32_t code = 0;
  const auto length = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  if (length <= 0) return {};
  return {static_cast<uint32_t>(code), static_cast<int>(length)};
}

Utf8Char utf8_before(std::string_view text, size_t at) {
  for (size_t back = 1; back <= 4 && back <= at; ++back) {
    const Utf8Char character = utf8_at(text.substr(0, at), at - back);
    if (character.length == static_cast<int>(back)) return character;
  }
  return {};
}

bool unicode_is_space(uint32_t code) {
  return code == ' ' || (code >= 9 && code <= 13) || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

bool unicode_is_word(uint32_t code) {
  constexpr int kWord[] = {UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LT, UTF8PROC_CATEGORY_LM,
                           UTF8PROC_CATEGORY_LO, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MC, UTF8PROC_CATEGORY_ME,
                           UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL, UTF8PROC_CATEGORY_PC};
  const int category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return code == 0x200C || code == 0x200D || std::ranges::find(kWord, category) != std::end(kWord);
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word;
    while (at + 8 <= text.size()) {
      std::memcpy(&word, text.data() + at, 8);
      if (word & 0x8080808080808080ull) break;
      at += 8;
    }
    if (at == text.size()) break;
    const int length = utf8_at(text, at).length;
    if (length == 0) return at;
    at += static_cast<size_t>(length);
  }
  return at;
}

size_t utf8_incomplete_suffix(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t needs = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    if (needs <= back || byte > 0xF4 || byte < 0xC2) return 0;
    // Some completion is valid if the one with the smallest or the largest tail is.
    std::string low(text.substr(text.size() - back)), high = low;
    low.resize(needs, '\x80');
    high.resize(needs, '\xBF');
    return utf8_at(low, 0).length || utf8_at(high, 0).length ? back : 0;
  }
  return 0;
}

std::string utf8_replace_invalid(std::string_view text, int64_t* replaced) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t good = utf8_valid_prefix(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    out.append("\xEF\xBF\xBD");
    ++*replaced;
    // A truncated sequence counts as one error: skip its longest prefix that could begin a character.
    size_t skip = 1;
    for (size_t length = 2; length <= 3 && length <= text.size(); ++length) {
      if (utf8_incomplete_suffix(text.substr(0, length)) == length) skip = length;
    }
    text.remove_prefix(skip);
  }
  return out;
}

void utf8_append(std::string& out, uint32_t code) {
  if (code < 0x80) return out.push_back(static_cast<char>(code));
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

}  // namespace octet
