// Repair of the characters of a text: UTF-8 that was read as Windows-1252 or Latin-1 and written as UTF-8 again
// ("cafÃ©"), bytes that are not UTF-8, control characters, line ends and white space, canonical composition (NFC).
#pragma once

#include <string>
#include <string_view>

namespace octet {

// What was repaired; each at least once in the text.
struct TextRepairs {
  bool mojibake = false;     // UTF-8 read as Windows-1252, up to three times over
  bool invalid = false;      // bytes that are not UTF-8: read as Windows-1252 where nothing else in the text is
                             // beyond ASCII, else replaced by U+FFFD
  bool controls = false;     // removed: all but tabs and line ends, byte order marks; U+0080..9F become Windows-1252's
  bool white_space = false;  // line ends become \n, other spaces ' '; those at ends of lines and texts go; at most one
                             // empty line
  bool composed = false;     // to NFC
  bool any() const { return mojibake || invalid || controls || white_space || composed; }
};

// Writes the repaired text to `out`; repaired again it stays as it is.
TextRepairs repair_text(std::string_view text, std::string& out);

}  // namespace octet
