// See tokenizer_utf8.h. Pure functions over bytes; ASCII runs are skipped eight bytes at a time.
#include "io/tokenizer_utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

namespace octet {

Utf8Char utf8_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<uint8_t>(text[i]); };
  const auto tail = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  if (at >= text.size()) return {};
  const uint32_t first = byte(at);
  if (first < 0x80) return {first, 1};
  if (first < 0xC2) return {};
  if (first < 0xE0) {
    if (!tail(at + 1)) return {};
    return {(first & 0x1F) << 6 | (byte(at + 1) & 0x3F), 2};
  }
  if (first < 0xF0) {
    if (!tail(at + 1) || !tail(at + 2)) return {};
    const uint32_t code = (first & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F);
    if (code < 0x800 || (code >= 0xD800 && code < 0xE000)) return {};
    return {code, 3};
  }
  if (first > 0xF4 || !tail(at + 1) || !tail(at + 2) || !tail(at + 3)) return {};
  const uint32_t code =
      (first & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 | (byte(at + 3) & 0x3F);
  if (code < 0x10000 || code > 0x10FFFF) return {};
  return {code, 4};
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
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

}  // namespace octet
