// Characters that rules count as punctuation.
#pragma once

#include <cstdint>
#include <string_view>

namespace octet {

// Of ASCII.
constexpr bool is_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

// Unicode's property Sentence_Terminal.
bool ends_sentences(uint32_t code);

// What datatrove's Gopher rules count as punctuation: ASCII's and a list, control characters, ends of sentences. A word
// of other symbols (a euro sign, an arrow) is a word. `bytes`: the character's own.
bool is_mark(uint32_t code, std::string_view bytes);

}  // namespace octet
