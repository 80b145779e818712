#include "io/character_map.h"

#include <utf8proc.h>

#include <memory>

#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

std::string decode_base64(std::string_view text, const std::string& where) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    check(digit != std::string_view::npos, ErrorCode::kCorrupt, "{}: precompiled_charsmap is not base64", where);
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((count += 6) < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xFF));
  }
  return bytes;
}

// Bytes of the grapheme at the beginning of `text`, which is valid and not empty.
size_t grapheme(std::string_view text) {
  utf8proc_int32_t state = 0;
  Utf8Char before = utf8_at(text, 0);
  auto size = static_cast<size_t>(before.length);
  while (size < text.size()) {
    const Utf8Char next = utf8_at(text, size);
    if (next.length == 0 || utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before.code),
                                                             static_cast<utf8proc_int32_t>(next.code), &state))
      break;
    size += static_cast<size_t>(next.length);
    before = next;
  }
  return size;
}

}  // namespace

TextNormalizer::Step precompiled_step(std::string_view charsmap, const std::string& where) {
  const auto map = std::make_shared<const CharacterMap>(decode_base64(charsmap, where), where);
  return [map](std::string_view text, const TextPlace&) {
    std::string out;
    std::string_view becomes;
    while (!text.empty()) {
      if (utf8_at(text, 0).length == 0) {  // bytes that are no UTF-8 stay
        out += text.front();
        text.remove_prefix(1);
        continue;
      }
      std::string_view part = text.substr(0, grapheme(text));
      text.remove_prefix(part.size());
      if (part.size() < 6 && map->longest(part, becomes, 1) > 0) {
        out += becomes;
        continue;
      }
      while (!part.empty()) {
        const std::string_view character = part.substr(0, static_cast<size_t>(utf8_at(part, 0).length));
        out += map->longest(character, becomes, 1) > 0 ? becomes : character;
        part.remove_prefix(character.size());
      }
    }
    return out;
  };
}

}  // namespace octet
