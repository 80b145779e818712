// Sets of characters as expressions over bytes: UTF-8, or the spellings inside of a JSON string.
#include <fmt/format.h>

#include "chat/guide_expressions.h"

namespace octet::guides {
namespace {

std::string utf8(uint32_t c) {
  if (c < 0x80) return {char(c)};
  if (c < 0x800) return {char(0xc0 | c >> 6), char(0x80 | (c & 63))};
  if (c < 0x10000) return {char(0xe0 | c >> 12), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
  return {char(0xf0 | c >> 18), char(0x80 | (c >> 12 & 63)), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
}

ByteSet byte_range(uint8_t low, uint8_t high) {
  ByteSet set;
  for (int b = low; b <= high; b++) set.set(size_t(b));
  return set;
}

// The canonical escape of a character that a JSON string cannot hold as it is; empty: it can.
std::string escape(uint32_t c) {
  switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return c < 0x20 ? fmt::format("\\u{:04x}", c) : "";
  }
}

}  // namespace

// Code points low to high, of one length in UTF-8 and without surrogates.
Expr Expressions::utf8_range(uint32_t low, uint32_t high) {
  const std::string first = utf8(low), last = utf8(high);
  const auto tail = [&](uint32_t from, uint32_t to, size_t skip) {  // ranges within one lead: bytes behind `skip`
    const std::string a = utf8(from), b = utf8(to);
    Expr all = kEmptyText;
    for (size_t i = a.size(); i-- > skip;) all = concat(bytes(byte_range(uint8_t(a[i]), uint8_t(b[i]))), all);
    return all;
  };
  for (size_t i = 1; i < first.size(); i++) {
    const uint32_t mask = (1u << (6 * (first.size() - i))) - 1;  // what the bytes from i on say
    if ((low & ~mask) != (high & ~mask)) {
      if ((low & mask) != 0) return alt({utf8_range(low, low | mask), utf8_range((low | mask) + 1, high)});
      if ((high & mask) != mask) return alt({utf8_range(low, (high & ~mask) - 1), utf8_range(high & ~mask, high)});
    }
  }
  return tail(low, high, 0);
}

Expr Expressions::characters(std::span<const std::pair<uint32_t, uint32_t>> ranges, bool json) {
  ByteSet ascii;
  std::vector<std::string> escapes;
  std::vector<Expr> parts;
  for (const auto& [low, high] : ranges) {
    for (uint32_t c = low; c <= high && c < 0x80; c++) {
      const std::string escaped = json ? escape(c) : "";
      if (escaped.empty()) {
        ascii.set(c);
      } else {
        escapes.push_back(escaped);
      }
    }
    constexpr std::pair<uint32_t, uint32_t> kPlanes[] = {
        {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    for (const auto& [from, to] : kPlanes)
      if (low <= to && high >= from) parts.push_back(utf8_range(std::max(low, from), std::min(high, to)));
  }
  parts.push_back(bytes(ascii));
  parts.push_back(words(std::move(escapes)));
  return alt(parts);
}

Expr Expressions::json_character(bool one_spelling) {
  Expr& made = json_character_[one_spelling || canonical];
  if (made >= 0) return made;
  constexpr std::pair<uint32_t, uint32_t> kAll[] = {{0, 0x10ffff}};
  if (one_spelling || canonical) return made = characters(kAll, true);
  const auto set = [&](std::string_view members) {
    ByteSet bytes;
    for (const char c : members) bytes.set(uint8_t(c));
    return this->bytes(bytes);
  };
  const Expr hex = set("0123456789abcdefABCDEF"), two = concat(hex, hex);
  const Expr unit = alt({concat({set("0123456789abcefABCEF"), hex, two}), concat({set("dD"), set("01234567"), two})});
  const Expr pair = concat({set("dD"), set("89abAB"), two, text("\\u"), set("dD"), set("cdefCDEF"), two});
  return made = alt({characters(kAll, true),
                     concat(byte('\\'), alt({set("\"\\/bfnrt"), concat(byte('u'), alt({unit, pair}))}))});
}

}  // namespace octet::guides
