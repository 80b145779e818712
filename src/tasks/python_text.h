// Texts as Python sees them: ast.literal_eval, str(), white space, characters.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace octet {

// A Python literal as JSON: strings, numbers, True, False, None, lists, tuples (lists here) and dicts with string keys.
// None: it is not one.
std::optional<nlohmann::ordered_json> python_literal(std::string_view text);
// str(value).
std::string python_str(const nlohmann::ordered_json& value);

std::string_view strip_right(std::string_view text);  // str.rstrip()
std::string_view strip(std::string_view text);        // str.strip()
bool begins_with_space(std::string_view text);
bool ends_with_space(std::string_view text);
bool is_digits(std::string_view text);            // ASCII ones, at least one
int64_t character_count(std::string_view text);   // len()
int64_t word_count(std::string_view text);        // len(re.split(r"\s+", text))
std::string uppercase(std::string_view text);     // str.upper(), but for letters that become more than one
std::string regex_escape(std::string_view text);  // for PythonRegex
std::string replace_all(std::string text, std::string_view from, std::string_view to);

}  // namespace octet
