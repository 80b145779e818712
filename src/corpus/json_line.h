// One line of JSON lines: where the text and the id stand in it, so that the rest of the line stays as it is, byte for
// byte. A whole parser would cost more than the hashes of a document.
#pragma once

#include <string>
#include <string_view>

namespace octet {

struct JsonLine {
  size_t begin = 0, end = 0;  // the text's value in the line, with its quotes
  std::string_view text;      // between them, escaped
  std::string_view id;        // the id's value as it stands in the line; empty: there is none
};

// The members `text_key` and `id_key` of the object that the line holds; of a key that stands twice the last counts.
// Throws kCorrupt with `where` in front, for damaged JSON (with the byte) and for a text that is missing or no string.
JsonLine scan_json_line(std::string_view line, std::string_view text_key, std::string_view id_key,
                        const std::string& where);

// What the escaped text means: itself where it has no escapes, else in `buffer`. A surrogate alone becomes U+FFFD.
std::string_view unescape_json(std::string_view text, std::string& buffer);

// Appends `text` as a JSON string with its quotes; all but quotes, backslashes and control characters as it is.
void append_json_string(std::string& out, std::string_view text);

}  // namespace octet
