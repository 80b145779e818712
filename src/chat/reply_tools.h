// What a request's tools say of their parameters: the types by which bare text becomes JSON.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace octet {

// Bits of the JSON types that a schema allows.
constexpr uint8_t kJsonString = 1, kJsonInteger = 2, kJsonNumber = 4, kJsonBoolean = 8, kJsonNull = 16, kJsonArray = 32,
                  kJsonObject = 64, kJsonAny = 127;

class ToolTable {
 public:
  // {type, function: {name, parameters}}, {name, parameters} or {name, input_schema} each; what has no name is skipped.
  explicit ToolTable(const nlohmann::ordered_json& tools);
  bool has(std::string_view function) const { return types_.find(function) != types_.end(); }
  bool begins(std::string_view text) const {  // the name of a function
    const auto found = types_.lower_bound(text);
    return found != types_.end() && found->first.starts_with(text);
  }
  // Bits; kJsonAny for what is not declared.
  uint8_t types(std::string_view function, std::string_view parameter) const;

 private:
  using ByName = std::map<std::string, uint8_t, std::less<>>;
  std::map<std::string, ByName, std::less<>> types_;
};

uint8_t schema_types(const nlohmann::ordered_json& schema,
                     int depth = 0);  // as far as type, const, enum and unions say

// `text` as JSON: its own text where that is JSON of an allowed type, else a string. True and None count as JSON's.
std::string typed_json(std::string_view text, uint8_t types);
void append_escaped(std::string& out, std::string_view text);  // for the inside of a JSON string

}  // namespace octet
