// Arguments that a format writes as keys with bare values: what fits a schema once the parser has read it.
//
// A parameter that is a string and nothing else is taken as it stands. Of all others the parser asks first whether the
// text is JSON of a type that the parameter has: they are written as JSON, or freely where the schema takes whatever
// the parser makes of it.
#include <algorithm>

#include "base/error.h"
#include "chat/call_expression.h"
#include "chat/regex.h"
#include "chat/reply_scan.h"

namespace octet::guides {
namespace {

// The JSON types of which the schema holds every value.
uint8_t free_types(const Json& schema) {
  if (schema.is_boolean()) return schema.get<bool>() ? kJsonAny : 0;
  uint8_t types = kJsonAny;
  for (const auto& [name, value] : schema.items()) {
    if (name == "type") {
      types &= schema_types({{name, value}});
    } else if (name == "anyOf") {
      uint8_t any = 0;
      for (const Json& branch : value) any |= free_types(branch);
      types &= any;
    } else if (constrains({{name, value}})) {
      return 0;
    }
  }
  return types;
}

}  // namespace

BareArguments::BareArguments(Expressions& x, ArgumentTags tags, const GuideLimits& limits)
    : x_(x), tags_(std::move(tags)), limits_(limits) {
  constexpr std::pair<uint32_t, uint32_t> kAll[] = {{0, 0x10ffff}};
  any_text_ = x_.repeat(x_.characters(kAll, false), 0, kUnbounded);
}

Expr BareArguments::any() { return x_.repeat(argument(other_names({}), bare(any_text_)), 0, kUnbounded); }

Expr BareArguments::fitting(JsonSchema& schema, const Json& parameters, const ToolTable& types,
                            std::string_view function) {
  static const Json kTrue = true, kNone = Json::object();
  const Json* object = &parameters;
  for (Json rest = *object; rest.is_object() && rest.contains("$ref"); rest = *object) {
    rest.erase("$ref");
    if (constrains(rest)) break;
    object = &resolve(schema.document(), (*object)["$ref"].get<std::string>());
  }
  if (!constrains(*object)) return any();
  for (const auto& [keyword, value] : object->items())
    check(keyword == "type" || keyword == "properties" || keyword == "required" || keyword == "additionalProperties" ||
              !constrains({{keyword, value}}),
          ErrorCode::kInvalidArgument, "the keyword \"{}\" of its parameters is not enforced in this reply format",
          keyword);
  const Json& properties = object->contains("properties") ? (*object)["properties"] : kNone;
  const Json& others = object->contains("additionalProperties") ? (*object)["additionalProperties"] : kTrue;
  std::vector<std::string> names, required;
  if (object->contains("required")) required = (*object)["required"].get<std::vector<std::string>>();
  for (const auto& [name, property] : properties.items()) names.push_back(name);
  for (const std::string& name : required)
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);

  Expr all = x_.repeat(argument(other_names(names), value(schema, others, kJsonAny)), 0, kUnbounded);
  for (size_t i = names.size(); i-- > 0;) {
    const std::string& name = names[i];
    check(!name.empty() && name.find_first_of("<>") == name.npos && !is_space(name.front()) && !is_space(name.back()),
          ErrorCode::kInvalidArgument, "the name of its parameter '{}' cannot be written in this reply format", name);
    const Json& place = properties.contains(name) ? properties[name] : others;
    const Expr one = argument(x_.text(name), value(schema, place, types.types(function, name)));
    const bool wanted = std::find(required.begin(), required.end(), name) != required.end();
    all = x_.concat(x_.repeat(one, wanted ? 1 : 0, 1), all);
  }
  return all;
}

Expr BareArguments::other_names(const std::vector<std::string>& names) {
  ByteSet bytes;
  for (char b = '!'; b <= '~'; b++)
    if (b != '<' && b != '>') bytes.set(size_t(b));
  return x_.both({x_.repeat(x_.bytes(bytes), 1, kUnbounded), x_.complement(x_.words(names))});
}

Expr BareArguments::value(JsonSchema& schema, const Json& place, uint8_t types) {
  if (types == kJsonString) return bare(strings(schema, place));
  // Where an integer may be, the parser takes any number.
  const uint8_t read = uint8_t(types | ((types & kJsonInteger) != 0 ? kJsonNumber : 0));
  if ((types & kJsonString) != 0 && (read & ~free_types(place)) == 0) return bare(any_text_);
  return x_.concat(schema.at(place), x_.words(tags_.close));
}

Expr BareArguments::bare(Expr texts) {
  const Expr closed = x_.concat(texts, x_.words(tags_.close));
  return x_.group(Unit::kText, x_.both({closed, x_.until(tags_.close, tags_.never)}));
}

Expr BareArguments::strings(JsonSchema& schema, const Json& place) {
  if (place.is_boolean()) return place.get<bool>() ? any_text_ : kNothing;
  constexpr std::pair<uint32_t, uint32_t> kAll[] = {{0, 0x10ffff}};
  std::vector<Expr> all{any_text_};
  const auto count = [&](const Json& value) { return int32_t(value.get<double>()); };
  const auto part = [&](const char* keyword) {
    return place.contains(keyword) ? strings(schema, place[keyword]) : any_text_;
  };
  for (const auto& [keyword, value] : place.items()) {
    std::vector<Expr> parts;
    if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf")
      for (const Json& branch : value) parts.push_back(strings(schema, branch));
    if (keyword == "type" && (schema_types({{keyword, value}}) & kJsonString) == 0) return kNothing;
    if (keyword == "enum" || keyword == "const") {
      std::vector<std::string> words;
      for (const Json& word : keyword == "enum" ? value : Json::array({value}))
        if (word.is_string()) words.push_back(word.get<std::string>());
      all.push_back(x_.words(std::move(words)));
    } else if (keyword == "minLength") {
      all.push_back(x_.repeat(x_.characters(kAll, false), count(value), kUnbounded));
    } else if (keyword == "maxLength") {
      all.push_back(x_.repeat(x_.characters(kAll, false), 0, count(value)));
    } else if (keyword == "pattern") {
      all.push_back(regex_expression(x_, value.get<std::string>(), RegexUse::kSearch, limits_));
    } else if (keyword == "format") {
      const std::string regex(format_regex(value.get<std::string>()));
      if (!regex.empty()) all.push_back(regex_expression(x_, regex, RegexUse::kText, limits_));
    } else if (keyword == "allOf") {
      all.push_back(x_.both(parts));
    } else if (keyword == "anyOf") {
      all.push_back(x_.alt(parts));
    } else if (keyword == "oneOf") {
      all.push_back(x_.one(parts));
    } else if (keyword == "not") {
      all.push_back(x_.complement(strings(schema, value)));
    } else if (keyword == "if") {
      const Expr condition = strings(schema, value);
      all.push_back(x_.alt({x_.both({condition, part("then")}), x_.both({x_.complement(condition), part("else")})}));
    } else if (keyword == "$ref") {
      all.push_back(strings(schema, resolve(schema.document(), value.get<std::string>())));
    }
  }
  return x_.both(std::move(all));
}

}  // namespace octet::guides
