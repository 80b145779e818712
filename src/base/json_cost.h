// What a stranger's JSON text would cost beyond its size, known before it is parsed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octet {

// Throws kInvalidArgument for a text nested deeper than `depth` levels, or of objects so large that comparing their
// names in pairs, as ordered objects do, takes more than a moment. What else is wrong with it is for the parser.
void check_json_cost(std::string_view text, const std::string& where, int64_t depth);

}  // namespace octet
