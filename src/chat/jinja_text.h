// Operations on strings that filters and methods share; results keep the origin of each byte.
#pragma once

#include "chat/jinja_operations.h"

namespace octet::jinja {

enum class LetterCase : uint8_t {
  kUpper,
  kLower,
  kTitle,        // str.title(): upper behind what is no letter
  kTitleFilter,  // |title: upper behind white space and opening brackets
  kCapital,      // the first character only
  kSwapped,
};
Value with_case(Runtime& runtime, const Value& string, LetterCase letters);
// Without `characters` (absent or none: white space) at the ends.
Value strip_text(Runtime& runtime, const Value& string, const Value& characters, bool left, bool right);
// `limit` < 0: all of them.
Value replace_text(Runtime& runtime, const Value& string, const Value& from, const Value& to, int64_t limit);
// str.split and str.rsplit; `separator` absent or none: runs of white space.
Value split_text(Runtime& runtime, const Value& string, const Value& separator, int64_t limit, bool from_right);
Value split_lines(Runtime& runtime, const Value& string, bool keep_ends);
Value pad_text(Runtime& runtime, const Value& string, int64_t width, std::string_view fill, char align);
Value join_list(Runtime& runtime, std::span<const Value> items, const Value& separator);
// |indent: `indent` before each line that is not empty, before the first and empty ones if told so.
Value indent_text(Runtime& runtime, const Value& string, const Value& indent, bool first, bool blank);

enum class CharacterClass : uint8_t { kAlpha, kDigit, kAlphaOrDigit, kSpace, kLower, kUpper };
bool all_characters(Runtime& runtime, const Value& string, CharacterClass wanted);  // false for ""

}  // namespace octet::jinja
