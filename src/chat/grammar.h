// Grammars in llama.cpp's GBNF as expressions over bytes.
#pragma once

#include <string_view>

#include "chat/guide_expressions.h"

namespace octet::guides {

// The texts of rule `root`. Throws kInvalidArgument, with the line: what is malformed, rules without a definition, left
// recursion, and tokens (<...>), which are not enforced.
Expr grammar_expression(Expressions& expressions, std::string_view gbnf, const GuideLimits& limits);

}  // namespace octet::guides
