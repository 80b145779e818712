// UTF-8 as strictly as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace octet {

struct Utf8Char {
  uint32_t code = 0;
  int length = 0;  // 0: the bytes at this place are not a character
};

Utf8Char utf8_at(std::string_view text, size_t at);

// The character that ends right before `at`; length 0 at the beginning and after invalid bytes.
Utf8Char utf8_before(std::string_view text, size_t at);

bool unicode_is_space(uint32_t code);  // White_Space
bool unicode_is_word(uint32_t code);   // what \w matches: letters, marks, decimal digits, connectors, joiners

// Length of the longest prefix that is valid UTF-8.
size_t utf8_valid_prefix(std::string_view text);

// How many bytes at the end could be the start of a character that needs more bytes: 0 to 3.
size_t utf8_incomplete_suffix(std::string_view text);

// Replaces each invalid byte or truncated sequence by U+FFFD and counts them.
std::string utf8_replace_invalid(std::string_view text, int64_t* replaced);

void utf8_append(std::string& out, uint32_t code);

}  // namespace octet
