#include "chat/json_schema.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json_cost.h"
#include "chat/regex.h"

namespace octet::guides {
namespace {

constexpr int kAnyObject = 0, kAnyArray = 0;

Json parse(std::string_view text, const GuideLimits& limits) {
  check(int64_t(text.size()) <= limits.source_bytes, ErrorCode::kInvalidArgument,
        "JSON schema: {} bytes exceed the limit of {}", text.size(), limits.source_bytes);
  check_json_cost(text, "JSON schema", limits.depth);
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kInvalidArgument, "JSON schema: not JSON: {}", error.what());
  }
}

std::string quoted_tail(const std::string& text) {  // with the closing quote alone
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace).substr(1);
}

}  // namespace

JsonSchema::JsonSchema(Expressions& expressions, std::string_view text, const GuideLimits& limits,
                       std::string_view without)
    : x_(expressions), limits_(limits), document_(parse(text, limits)) {
  facts_ = check_schema(document_);
  x_.source = this;
  x_.canonical = facts_.negates;
  for (const std::string& regex : facts_.patterns) pattern(regex);
  const auto separator = [&](char c) {
    return x_.group(Unit::kSeparator, x_.concat(x_.byte(uint8_t(c)), x_.repeat(x_.byte(' '), 0, 1)));
  };
  comma_ = separator(',');
  colon_ = separator(':');
  any_string_ = x_.string_rest(0, kUnbounded);
  if (!without.empty()) {
    const Expr string = x_.concat(x_.repeat(x_.json_character(false), 0, kUnbounded), x_.byte('"'));
    any_string_ = x_.group(Unit::kString, x_.both({string, x_.until({}, {std::string(without)})}));
  }
  const Json& all = keep(Json::object());
  any_ = x_.node(rule(all, RuleKind::kAny)).a;
  any_named_ = x_.node(rule(all, RuleKind::kAnyNamed)).a;
  for (const int32_t values : {any_, any_named_}) {
    ObjectFacts& facts = objects_.emplace_back();
    facts.others.push_back({any_string_, x_.rule(values)});
    facts.free = values == any_;
    arrays_.push_back({.items = x_.rule(values)});
  }
  if (facts_.negates) {
    ObjectFacts& facts = objects_[1];
    Json named = Json::object();
    for (const std::string& name : facts_.names) named["properties"][name] = true;
    facts = ObjectFacts();
    add_classes(keep(std::move(named)), facts, facts_.names);
  }
}

Expr JsonSchema::any_object() { return x_.concat(x_.byte('{'), object_rest({kAnyObject, 0, {}}, true)); }

Expr JsonSchema::rule(const Json& schema, RuleKind kind) {
  const Json* place = &schema;
  if (kind == RuleKind::kSchema) {
    while (place->is_object() && place->size() == 1 && place->contains("$ref"))
      place = &resolve(document_, (*place)["$ref"].get_ref<const std::string&>());
    if (place->is_boolean() && !place->get<bool>()) return kNothing;
    if (!constrains(*place)) return x_.rule(any_);
  }
  const auto [found, added] = rule_index_.try_emplace({place, kind}, kNothing);
  if (added) {
    rules_.push_back({kind, place});
    found->second = x_.rule(x_.add_rule(Unit::kValue, false));
  }
  return found->second;
}

std::vector<Expr> JsonSchema::rules(const Json& schemas) {
  std::vector<Expr> out;
  for (const Json& schema : schemas) out.push_back(rule(schema));
  return out;
}

Expr JsonSchema::rule_body(int32_t rule) {
  const RuleFacts facts = rules_[size_t(rule)];
  switch (facts.kind) {
    case RuleKind::kSchema: return lower(*facts.schema);
    case RuleKind::kTyped: return lower_typed(*facts.schema);
    default: break;
  }
  const bool named = facts.kind == RuleKind::kAnyNamed;
  const std::vector<bool> none(named && facts_.negates ? objects_[1].values.size() : 0);
  return x_.alt({x_.concat(x_.byte('"'), any_string_), number_expression(x_, *facts.schema, false),
                 x_.concat(x_.byte('{'), object_rest({named ? 1 : kAnyObject, 0, none}, true)),
                 x_.concat(x_.byte('['), array_rest(named ? 1 : kAnyArray, 0, 0)), words({"true", "false", "null"})});
}

bool JsonSchema::universal(const Node& node) const {
  switch (node.kind) {
    case Kind::kRule: return node.a == any_;
    case Kind::kObject: return states_[size_t(node.a)].facts == kAnyObject;
    default: return node.a == kAnyArray;
  }
}

// All the keywords of one schema, each as a set of values.
Expr JsonSchema::lower(const Json& schema) {
  if (schema.is_boolean()) return schema.get<bool>() ? x_.rule(any_) : kNothing;
  std::vector<Expr> all;
  const auto has = [&](const char* name) { return schema.contains(name); };
  if (has_typed_keywords(schema)) all.push_back(rule(schema, RuleKind::kTyped));
  if (has("enum")) all.push_back(values(schema["enum"]));
  if (has("const")) all.push_back(value(schema["const"]));
  if (has("$ref")) all.push_back(rule(resolve(document_, schema["$ref"].get_ref<const std::string&>())));
  if (has("allOf"))
    for (const Expr e : rules(schema["allOf"])) all.push_back(e);
  if (has("anyOf")) all.push_back(x_.alt(rules(schema["anyOf"])));
  if (has("oneOf")) {
    if (disjoint_types(document_, schema["oneOf"])) {
      all.push_back(x_.alt(rules(schema["oneOf"])));
    } else {
      all.push_back(any());
      all.push_back(x_.one(rules(schema["oneOf"])));
    }
  }
  const auto either = [&](Expr condition, Expr then, Expr otherwise) {
    all.push_back(x_.alt({x_.both({condition, then}), x_.both({any(), x_.complement(condition), otherwise})}));
  };
  if (has("not")) all.push_back(x_.both({any(), x_.complement(rule(schema["not"]))}));
  if (has("if") && (has("then") || has("else")))
    either(rule(schema["if"]), has("then") ? rule(schema["then"]) : any(), has("else") ? rule(schema["else"]) : any());
  for (const char* name : {"dependencies", "dependentSchemas"}) {
    if (!has(name)) continue;
    for (const auto& [key, child] : schema[name].items()) {
      if (child.is_array() || child.is_string()) continue;
      either(rule(keep({{"type", "object"}, {"required", Json::array({key})}})), rule(child), any());
    }
  }
  return all.empty() ? x_.rule(any_) : x_.both(std::move(all));
}

Expr JsonSchema::lower_typed(const Json& schema) {
  std::set<std::string> types{"null", "boolean", "number", "string", "array", "object"};
  if (schema.contains("type")) {
    types.clear();
    for (const Json& type : schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]}))
      types.insert(type.get<std::string>());
  }
  std::vector<Expr> parts;
  std::vector<std::string> named;
  if (types.contains("null")) named.push_back("null");
  if (types.contains("boolean")) named.insert(named.end(), {"true", "false"});
  parts.push_back(words(std::move(named)));
  if (types.contains("number") || types.contains("integer"))
    parts.push_back(number_expression(x_, schema, !types.contains("number")));
  if (types.contains("string")) parts.push_back(x_.concat(x_.byte('"'), string_part(schema)));
  if (types.contains("array")) parts.push_back(x_.concat(x_.byte('['), array_part(schema)));
  if (types.contains("object")) parts.push_back(x_.concat(x_.byte('{'), object_part(schema)));
  return x_.alt(parts);
}

Expr JsonSchema::words(std::vector<std::string> list) { return x_.group(Unit::kWord, x_.words(std::move(list))); }

Expr JsonSchema::string_part(const Json& schema) {
  const auto count = [&](const char* name, int32_t otherwise) {
    return schema.contains(name) ? int32_t(schema[name].get<double>()) : otherwise;
  };
  std::vector<Expr> all{any_string_, x_.string_rest(count("minLength", 0), count("maxLength", kUnbounded))};
  if (schema.contains("pattern")) all.push_back(pattern(schema["pattern"].get<std::string>()));
  if (schema.contains("format"))
    if (const std::string_view regex = format_regex(schema["format"].get<std::string>()); !regex.empty())
      all.push_back(pattern("^(?:" + std::string(regex) + ")$"));
  return x_.both(std::move(all));
}

Expr JsonSchema::pattern(const std::string& regex) {
  Expr& made = patterns_.try_emplace(regex, -1).first->second;
  if (made < 0) made = x_.group(Unit::kString, regex_expression(x_, regex, RegexUse::kString, limits_));
  return made;
}

Expr JsonSchema::values(const Json& list) {
  std::vector<Expr> parts;
  std::vector<std::string> strings;
  for (const Json& v : list) {
    if (v.is_string()) {
      strings.push_back(quoted_tail(v.get<std::string>()));
    } else {
      parts.push_back(value(v));
    }
  }
  parts.push_back(x_.concat(x_.byte('"'), x_.group(Unit::kString, x_.words(std::move(strings)))));
  return x_.alt(parts);
}

Expr JsonSchema::value(const Json& v) {
  if (v.is_string()) return values(Json::array({v}));
  if (v.is_number()) return number_value(x_, v);
  if (v.is_array()) {
    Json schema{{"type", "array"}, {"prefixItems", Json::array()}, {"minItems", v.size()}, {"maxItems", v.size()}};
    for (const Json& item : v) schema["prefixItems"].push_back({{"const", item}});
    return lower_typed(keep(std::move(schema)));
  }
  if (v.is_object()) {
    Json schema{{"type", "object"},
                {"properties", Json::object()},
                {"required", Json::array()},
                {"additionalProperties", false}};
    for (const auto& [name, item] : v.items()) {
      schema["properties"][name] = Json{{"const", item}};
      schema["required"].push_back(name);
    }
    return lower_typed(keep(std::move(schema)));
  }
  return words({v.dump()});
}

}  // namespace octet::guides
