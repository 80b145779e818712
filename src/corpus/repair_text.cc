// See repair_text.h. A sequence of characters is taken for misread UTF-8 only where it is hardly anything else: French
// "é »" with a no-break space and "CAFÉ»" read as sequences of bytes too.
#include "corpus/repair_text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "io/tokenizer_steps.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

// Of the bytes 0x80..0x9F in Windows-1252; 0: none.
constexpr uint16_t kWindows1252[32] = {0x20AC, 0,      0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021,
                                       0x02C6, 0x2030, 0x0160, 0x2039, 0x0152, 0,      0x017D, 0,
                                       0,      0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                       0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0,      0x017E, 0x0178};

uint32_t from_windows_1252(uint8_t byte) {
  const uint32_t code = byte >= 0x80 && byte < 0xA0 ? kWindows1252[byte - 0x80] : byte;
  return code == 0 ? byte : code;
}

// The byte that Windows-1252 or Latin-1 reads as this character; 0: none beyond ASCII.
uint8_t to_windows_1252(uint32_t code) {
  if (code >= 0x80 && code <= 0xFF) return static_cast<uint8_t>(code);
  if (code < 0x152 || code > 0x2122) return 0;
  const auto* found = std::ranges::find(kWindows1252, code);
  return found == std::end(kWindows1252) ? 0 : static_cast<uint8_t>(0x80 + (found - kWindows1252));
}

struct Misread {
  uint32_t code = 0;  // what was meant
  size_t length = 0;  // bytes of the text; 0: no such sequence
  uint8_t lead = 0, second = 0, last = 0;
};

Misread misread_at(std::string_view text, size_t at) {
  char bytes[4];
  size_t wanted = 1, length = 0;
  for (size_t i = 0; i < wanted; ++i) {
    const Utf8Char character = utf8_at(text, at + length);
    const uint8_t byte = to_windows_1252(character.code);
    if (character.length < 2 || byte == 0) return {};
    if (i == 0) wanted = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    if (i == 0 ? byte < 0xC2 || byte > 0xF4 : byte > 0xBF) return {};
    bytes[i] = static_cast<char>(byte);
    length += static_cast<size_t>(character.length);
  }
  const Utf8Char meant = utf8_at({bytes, wanted}, 0);
  if (meant.length != static_cast<int>(wanted)) return {};
  return {meant.code, length, static_cast<uint8_t>(bytes[0]), static_cast<uint8_t>(bytes[1]),
          static_cast<uint8_t>(bytes[wanted - 1])};
}

bool is_upper(uint32_t code) { return (code >= 'A' && code <= 'Z') || (code >= 0xC0 && code <= 0xDE && code != 0xD7); }

// Whether a sequence that stands alone, behind the character `before`, is misread UTF-8.
bool is_clear(const Misread& one, uint32_t before) {
  // Quotes, dashes, an ellipsis and a no-break space stand behind any letter.
  constexpr uint8_t kPunctuation[] = {0x85, 0x91, 0x92, 0x93, 0x94, 0x96, 0x97, 0xA0, 0xAB, 0xBB, 0x8B, 0x9B};
  const bool punctuation = std::ranges::find(kPunctuation, one.last) != std::end(kPunctuation);
  if (one.lead <= 0xC3) return !punctuation || !is_upper(before);
  if (one.lead < 0xE0) return !punctuation && before >= 'a' && before <= 'z';               // "zÅ‚oty"
  if (one.lead == 0xE1) return one.second == 0xBA || (one.second == 0xBB && !punctuation);  // Vietnamese
  if (one.lead == 0xE2) return one.second <= 0x9E && one.second != 0x85;  // "â€™": punctuation and symbols
  if (one.lead == 0xEF) return one.second >= 0xBB && one.second != 0xBE;  // marks, full-width forms
  return one.lead >= 0xF0;                                                // emoji
}

// Whether all that is beyond ASCII reads as UTF-8.
bool is_misread(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = static_cast<uint8_t>(text[at]) < 0x80 ? 1 : misread_at(text, at).length;
    if (length == 0) return false;
    at += length;
  }
  return true;
}

bool repair_mojibake(std::string_view text, std::string& out, bool whole = false) {
  bool changed = false, left = false;
  size_t done = 0;
  out.clear();
  for (size_t at = text.find('\xC3'); at != std::string_view::npos; at = text.find('\xC3', at)) {
    std::string meant;
    size_t count = 0, end = at;
    bool clear = whole;
    const uint32_t before = utf8_before(text, at).code;
    for (Misread one = misread_at(text, at); one.length > 0; one = misread_at(text, end)) {
      clear |= is_clear(one, count == 0 ? before : 'a');
      utf8_append(meant, one.code);
      end += one.length;
      ++count;
    }
    if (count > 0 && (clear || count >= 2)) {
      out.append(text.substr(done, at - done)) += meant;
      done = at = end;
      changed = true;
    } else {
      left |= count > 0;
      at = std::max(end, at + 2);
    }
  }
  if (changed && left && is_misread(text)) return repair_mojibake(text, out, true);
  if (changed) out.append(text.substr(done));
  return changed;
}

std::string decode_invalid(std::string_view text) {
  int64_t replaced = 0;
  bool multibyte = false;
  for (size_t at = 0; at < text.size() && !multibyte;) {
    const int length = utf8_at(text, at).length;
    multibyte = length > 1;
    at += static_cast<size_t>(std::max(length, 1));
  }
  if (multibyte) return utf8_replace_invalid(text, &replaced);
  std::string out;
  for (const char c : text) utf8_append(out, from_windows_1252(static_cast<uint8_t>(c)));
  return out;
}

bool is_removed(uint32_t code) {
  return (code < 0x20 && code != '\n' && code != '\t') || code == 0x7F || code == 0xFEFF ||
         (code >= 0x206A && code <= 0x206F) || (code >= 0xFFF9 && code <= 0xFFFB);
}

// Whether the character, alone or with others of which this holds, may change under NFC.
bool may_compose(uint32_t code) {
  return !(code < 0x300 || (code >= 0x400 && code < 0x483) || (code >= 0x2010 && code < 0x2028) ||
           (code >= 0x3001 && code < 0x3099) || (code >= 0x4E00 && code < 0xA000) || code == 0xFFFD ||
           (code >= 0x2030 && code < 0x2100));
}

// One line without its end, appended; false where it has nothing but ASCII that stays.
void append_line(std::string_view line, std::string& out, TextRepairs& repairs, bool& compose) {
  constexpr size_t kBlock = 32;
  for (size_t at = 0; at < line.size();) {
    if (at + kBlock <= line.size()) {  // plain ASCII, a block at once
      uint8_t other = 0;
      const char* block = line.data() + at;
      for (size_t i = 0; i < kBlock; ++i) other |= static_cast<uint8_t>(static_cast<uint8_t>(block[i] - 0x20) >= 0x5F);
      if (!other) {
        out.append(block, kBlock), at += kBlock;
        continue;
      }
    }
    const auto byte = static_cast<uint8_t>(line[at]);
    if (byte >= 0x20 && byte < 0x7F) {
      out += line[at++];
      continue;
    }
    const Utf8Char character = utf8_at(line, at);
    uint32_t code = character.code;
    at += static_cast<size_t>(character.length);
    if (is_removed(code)) {
      repairs.controls = true;
    } else if (code >= 0x80 && code < 0xA0) {
      repairs.controls = true;
      if ((code = from_windows_1252(static_cast<uint8_t>(code))) >= 0xA0) utf8_append(out, code);
    } else if (code != '\t' && unicode_is_space(code)) {
      repairs.white_space = true;
      out += ' ';
    } else {
      compose |= may_compose(code);
      utf8_append(out, code);
    }
  }
}

}  // namespace

TextRepairs repair_text(std::string_view text, std::string& out) {
  TextRepairs repairs;
  std::string decoded, again;
  if (utf8_valid_prefix(text) < text.size()) {
    repairs.invalid = true;
    text = decoded = decode_invalid(text);
  }
  for (int round = 0; round < 3 && repair_mojibake(text, again); ++round) {
    repairs.mojibake = true;
    decoded.swap(again);
    text = decoded;
  }
  out.clear();
  bool compose = false;
  size_t empty = 0;  // lines since the last that is not
  repairs.white_space = text.ends_with('\n');
  while (!text.empty()) {
    // A line ends at \n, \r\n, \r, or Unicode's separators of lines and paragraphs (E2 80 A8, E2 80 A9).
    size_t end = text.find('\n');
    const std::string_view first = text.substr(0, end);
    size_t skip = end == std::string_view::npos ? 0 : 1;
    end = first.size();
    if (const size_t cr = first.find('\r'); cr != std::string_view::npos) {
      end = cr, skip = cr + 1 < text.size() && text[cr + 1] == '\n' ? 2 : 1;
      repairs.white_space = true;
    }
    for (size_t mark = first.find("\xE2\x80"); mark < end; mark = first.find("\xE2\x80", mark + 1))
      if (mark + 2 < end && (first[mark + 2] == '\xA8' || first[mark + 2] == '\xA9')) {
        end = mark, skip = 3;
        repairs.white_space = true;
        break;
      }
    const size_t begin = out.size();
    if (begin > 0) out.append(std::min<size_t>(empty, 1) + 1, '\n');
    const size_t body = out.size();
    append_line(text.substr(0, end), out, repairs, compose);
    for (; out.size() > body && (out.back() == ' ' || out.back() == '\t'); out.pop_back()) repairs.white_space = true;
    if (out.size() == body) {
      out.resize(begin);
      ++empty;
    } else {
      repairs.white_space |= empty > (begin > 0 ? 1 : 0);
      empty = 0;
    }
    text.remove_prefix(std::min(end + skip, text.size()));
  }
  if (compose) {
    again = normal_form(NormalForm::kNfc, out);
    repairs.composed = again != out;
    out.swap(again);
  }
  return repairs;
}

}  // namespace octet
