// See words.h. FNV-1a over code points, mixed at the end; ASCII goes through a table.
#include "corpus/words.h"

#include <utf8proc.h>

#include <array>

#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

constexpr uint64_t kBasis = 0xcbf29ce484222325ull, kPrime = 0x100000001b3ull;
constexpr uint8_t kOther = 0xFF;  // not ASCII

// The lower-case letter or digit; 0: neither.
constexpr std::array<uint8_t, 256> make_table() {
  std::array<uint8_t, 256> table{};
  for (unsigned c = 0; c < 256; ++c) {
    const bool upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z', digit = c >= '0' && c <= '9';
    table[c] = c >= 0x80 ? kOther : static_cast<uint8_t>(upper ? c + 32 : lower || digit ? c : 0);
  }
  return table;
}
constexpr std::array<uint8_t, 256> kTable = make_table();

// The lower-case form of a letter or number outside of ASCII; 0: something else.
uint32_t word_character(uint32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return code;
    default: return 0;
  }
}

}  // namespace

void hash_words(std::string_view text, std::vector<uint64_t>& words) {
  words.clear();
  uint64_t hash = kBasis;
  const auto end_word = [&] {
    if (hash != kBasis) words.push_back(mix_bits(hash));
    hash = kBasis;
  };
  for (size_t at = 0; at < text.size();) {
    const uint8_t c = kTable[static_cast<uint8_t>(text[at])];
    uint32_t code = c;
    if (c == kOther) {
      const Utf8Char character = utf8_at(text, at);
      code = character.length > 0 ? word_character(character.code) : 0;
      at += static_cast<size_t>(character.length > 0 ? character.length : 1);
    } else {
      ++at;
    }
    if (code != 0)
      hash = (hash ^ code) * kPrime;
    else
      end_word();
  }
  end_word();
}

}  // namespace octet
