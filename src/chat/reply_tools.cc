#include "chat/reply_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "chat/reply_scan.h"

namespace octet {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxUnions = 8;  // unions inside of unions

uint8_t type_named(const Json& name) {
  static const std::map<std::string, uint8_t> kTypes = {
      {"string", kJsonString},   {"integer", kJsonInteger}, {"number", kJsonNumber | kJsonInteger},
      {"boolean", kJsonBoolean}, {"null", kJsonNull},       {"array", kJsonArray},
      {"object", kJsonObject}};
  const auto found = name.is_string() ? kTypes.find(name.get_ref<const std::string&>()) : kTypes.end();
  return found == kTypes.end() ? kJsonAny : found->second;
}

uint8_t type_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::string: return kJsonString;
    case Json::value_t::boolean: return kJsonBoolean;
    case Json::value_t::null: return kJsonNull;
    case Json::value_t::array: return kJsonArray;
    case Json::value_t::object: return kJsonObject;
    case Json::value_t::number_float: return kJsonNumber | kJsonInteger;
    default: return kJsonInteger;
  }
}

const Json& member(const Json& object, const char* name) {
  static const Json kNothing;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : kNothing;
}

// The type that the first byte of a JSON text shows.
uint8_t text_type(std::string_view json) {
  switch (json.front()) {
    case '"': return kJsonString;
    case '{': return kJsonObject;
    case '[': return kJsonArray;
    case 't':
    case 'f': return kJsonBoolean;
    case 'n': return kJsonNull;
    default: return json.find_first_of(".eE") == std::string_view::npos ? kJsonInteger : kJsonNumber;
  }
}

}  // namespace

uint8_t schema_types(const Json& schema, int depth) {
  if (!schema.is_object() || depth == kMaxUnions) return kJsonAny;
  uint8_t types = 0;
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (!type->is_array()) return type_named(*type);
    for (const Json& name : *type) types |= type_named(name);
    return types;
  }
  if (const auto value = schema.find("const"); value != schema.end()) return type_of(*value);
  for (const char* list : {"enum", "anyOf", "oneOf"}) {
    const auto found = schema.find(list);
    if (found == schema.end() || !found->is_array()) continue;
    for (const Json& item : *found)
      types |= std::string_view(list) == "enum" ? type_of(item) : schema_types(item, depth + 1);
    return types;
  }
  return kJsonAny;
}

ToolTable::ToolTable(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json& function = member(tool, "function").is_object() ? member(tool, "function") : tool;
    const Json& name = member(function, "name");
    if (!name.is_string()) continue;
    ByName& types = types_[name.get<std::string>()];
    for (const char* schema : {"parameters", "input_schema"}) {
      const Json& properties = member(member(function, schema), "properties");
      if (!properties.is_object()) continue;
      for (const auto& [parameter, property] : properties.items()) types[parameter] = schema_types(property);
    }
  }
}

uint8_t ToolTable::types(std::string_view function, std::string_view parameter) const {
  const auto tool = types_.find(function);
  if (tool == types_.end()) return kJsonAny;
  const auto found = tool->second.find(parameter);
  return found == tool->second.end() ? kJsonAny : found->second;
}

std::string typed_json(std::string_view text, uint8_t types) {
  std::string_view word = text;
  while (!word.empty() && is_space(word.front())) word.remove_prefix(1);
  while (!word.empty() && is_space(word.back())) word.remove_suffix(1);
  std::string json(word);
  if (word == "True" || word == "False" || word == "TRUE" || word == "FALSE")
    std::transform(json.begin(), json.end(), json.begin(), [](char byte) { return static_cast<char>(byte | 0x20); });
  if (word == "None") json = "null";
  // 3.0 is an integer too, says JSON Schema: a number suits where either is allowed.
  uint8_t suits = types;
  if (types & kJsonInteger) suits |= kJsonNumber;
  if (!json.empty() && is_json(json) && (text_type(json) & suits)) return json;
  json = "\"";
  append_escaped(json, text);
  return json + '"';
}

void append_escaped(std::string& out, std::string_view text) {
  for (const char byte : text) {
    switch (byte) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(byte) < 0x20)
          out += fmt::format("\\u{:04x}", byte);
        else
          out += byte;
    }
  }
}

}  // namespace octet
