// Wrapper of the JSON library. nlohmann's header costs seconds of compile time: include this only in .cc files.
#pragma once

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace octet {

// Parses or throws kCorrupt with `where` (a path) and the position. With `unique_keys` an object that names a key twice
// is an error instead of the last one winning. Nesting deeper than 512 levels is refused. As nlohmann::ordered_json
// members keep their order; objects must be of few members then (base/json_cost.h). Numbers: with_finite_numbers().
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& where, bool unique_keys = false);

// The text with the largest double in place of larger numbers: the library's parser refuses a whole text for one, also
// in a member that nobody reads. json_get refuses that value.
std::string with_finite_numbers(std::string_view text);
constexpr int kNumberOverflow = 406;  // the id of that parser's exception

[[noreturn]] void fail_json_member(const nlohmann::json& object, const char* key, const std::string& where);

// The member `key` of an object as T, or an error naming `where`, the key and the JSON found there.
template <typename T>
T json_get(const nlohmann::json& object, const char* key, const std::string& where) {
  if (object.is_object()) {
    auto member = object.find(key);
    if (member != object.end()) {
      bool fits = true;
      if constexpr (std::is_same_v<T, bool>)
        fits = member->is_boolean();
      else if constexpr (std::is_integral_v<T>)
        fits = member->is_number_unsigned()
                   ? std::in_range<T>(member->template get<uint64_t>())
                   : member->is_number_integer() && std::in_range<T>(member->template get<int64_t>());
      else if constexpr (std::is_floating_point_v<T>)
        fits = member->is_number() && std::abs(member->template get<double>()) < std::numeric_limits<double>::max();
      if (fits) {
        try {
          return member->template get<T>();
        } catch (const nlohmann::json::exception&) {  // reported below with the path and the key
        }
      }
    }
  }
  fail_json_member(object, key, where);
}

}  // namespace octet
