// Regular expressions of ECMA-262 (the part without memory) as expressions over bytes.
#pragma once

#include <string_view>

#include "chat/guide_expressions.h"

namespace octet::guides {

enum class RegexUse {
  kText,    // a whole text in UTF-8
  kString,  // JSON Schema's `pattern`: any place in a string, in the spelling of a JSON string, its quote included
  kSearch,  // the same of a text in UTF-8
};
// Throws kInvalidArgument for what is malformed or not enforced (back references, \b, \p ...), with its place.
Expr regex_expression(Expressions& expressions, std::string_view regex, RegexUse use, const GuideLimits& limits);

}  // namespace octet::guides
