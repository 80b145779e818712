// The check of a schema document: every keyword is known to be enforced, or the schema is refused by the keyword's
// name.
#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "chat/json_schema.h"

namespace octet::guides {
namespace {

enum class Form {
  kIgnored,  // says nothing about what is valid
  kSchema,   // a schema; Branch: one about the same value
  kBranch,
  kBranches,  // a list of schemas about the same value
  kSchemas,   // a list of schemas
  kItems,     // a schema or a list of them
  kNamed,     // schemas by name
  kDependencies,
  kNumber,
  kCount,  // a whole number, 0 or more
  kText,
  kLimit,  // a number, or (draft 4) a boolean
  kTexts,
  kType,
  kList,
  kAny,
  kUnique,
  kReference,
  kRefused,
};

struct Keyword {
  std::string_view name;
  Form form;
  bool typed = false;  // speaks of values of one type
};

constexpr Keyword kKeywords[] = {
    {"type", Form::kType, true},
    {"minimum", Form::kNumber, true},
    {"maximum", Form::kNumber, true},
    {"exclusiveMinimum", Form::kLimit, true},
    {"exclusiveMaximum", Form::kLimit, true},
    {"multipleOf", Form::kNumber, true},
    {"minLength", Form::kCount, true},
    {"maxLength", Form::kCount, true},
    {"pattern", Form::kText, true},
    {"format", Form::kText, true},
    {"properties", Form::kNamed, true},
    {"patternProperties", Form::kNamed, true},
    {"additionalProperties", Form::kSchema, true},
    {"propertyNames", Form::kSchema, true},
    {"required", Form::kTexts, true},
    {"minProperties", Form::kCount, true},
    {"maxProperties", Form::kCount, true},
    {"dependencies", Form::kDependencies, true},
    {"dependentRequired", Form::kDependencies, true},
    {"dependentSchemas", Form::kDependencies},
    {"items", Form::kItems, true},
    {"prefixItems", Form::kSchemas, true},
    {"additionalItems", Form::kSchema, true},
    {"contains", Form::kSchema, true},
    {"minContains", Form::kCount, true},
    {"maxContains", Form::kCount, true},
    {"minItems", Form::kCount, true},
    {"maxItems", Form::kCount, true},
    {"uniqueItems", Form::kUnique, true},
    {"enum", Form::kList},
    {"const", Form::kAny},
    {"allOf", Form::kBranches},
    {"anyOf", Form::kBranches},
    {"oneOf", Form::kBranches},
    {"not", Form::kBranch},
    {"if", Form::kBranch},
    {"then", Form::kBranch},
    {"else", Form::kBranch},
    {"$ref", Form::kReference},
    {"unevaluatedProperties", Form::kRefused},
    {"unevaluatedItems", Form::kRefused},
    {"$dynamicRef", Form::kRefused},
    {"$recursiveRef", Form::kRefused},
    {"extends", Form::kRefused},
    {"disallow", Form::kRefused},
    {"divisibleBy", Form::kRefused},
    {"$defs", Form::kIgnored},
    {"definitions", Form::kIgnored},
};

const Keyword* keyword(std::string_view name) {
  const auto* found = std::ranges::find(kKeywords, name, &Keyword::name);
  return found == std::end(kKeywords) ? nullptr : found;
}

[[noreturn]] void refuse(std::string_view name, const Json& value, std::string_view want) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 100) text = text.substr(0, 100) + "...";
  fail(ErrorCode::kInvalidArgument, "JSON schema: \"{}\": {} (want {})", name, text, want);
}

class Checker {
 public:
  explicit Checker(const Json& document) : document_(document) {}

  SchemaFacts run() {
    visit(document_);
    while (!waiting_.empty()) {
      const Json* next = waiting_.back();
      waiting_.pop_back();
      check_one(*next);
    }
    for (const auto& [schema, edges] : same_value_) find_loop(schema);
    std::sort(facts_.names.begin(), facts_.names.end());
    facts_.names.erase(std::unique(facts_.names.begin(), facts_.names.end()), facts_.names.end());
    return facts_;
  }

 private:
  void visit(const Json& schema) {
    check(schema.is_object() || schema.is_boolean(), ErrorCode::kInvalidArgument,
          "JSON schema: a schema is an object or a boolean, not {}", schema.type_name());
    if (schema.is_object() && seen_.insert(&schema).second) waiting_.push_back(&schema);
  }
  void visit_all(std::string_view name, const Json& schemas) {
    if (!schemas.is_array()) refuse(name, schemas, "a list of schemas");
    for (const Json& schema : schemas) visit(schema);
  }

  void check_one(const Json& schema) {
    for (const auto& [name, value] : schema.items()) {
      const Keyword* known = keyword(name);
      if (known == nullptr) continue;
      check_value(schema, *known, value);
    }
    const auto is = [&](const char* name) { return schema.contains(name); };
    facts_.negates |= is("not") || (is("if") && (is("then") || is("else"))) || is("contains") ||
                      (is("oneOf") && !disjoint_types(document_, schema["oneOf"]));
  }

  void check_value(const Json& schema, const Keyword& known, const Json& value) {
    const std::string_view name = known.name;
    auto& edges = same_value_[&schema];
    switch (known.form) {
      case Form::kIgnored:
      case Form::kAny: return;
      case Form::kRefused: fail(ErrorCode::kInvalidArgument, "JSON schema: the keyword \"{}\" is not enforced", name);
      case Form::kSchema: return visit(value);
      case Form::kBranch: edges.push_back(&value); return visit(value);
      case Form::kBranches:
        visit_all(name, value);
        if (value.empty()) refuse(name, value, "at least one schema");
        for (const Json& branch : value) edges.push_back(&branch);
        return;
      case Form::kSchemas: return visit_all(name, value);
      case Form::kItems: return value.is_array() ? visit_all(name, value) : visit(value);
      case Form::kNamed:
        if (!value.is_object()) refuse(name, value, "schemas by name");
        for (const auto& [key, child] : value.items()) {
          if (name == "properties") facts_.names.push_back(key);
          if (name == "patternProperties") facts_.patterns.push_back(key);
          visit(child);
        }
        return;
      case Form::kDependencies:
        if (!value.is_object()) refuse(name, value, "an object");
        for (const auto& [key, child] : value.items()) {
          facts_.names.push_back(key);
          if (child.is_array() || child.is_string()) {
            if (name == "dependentSchemas") refuse(name, value, "schemas by name");
            for (const Json& other : child)
              if (!other.is_string()) refuse(name, value, "lists of names");
            continue;
          }
          if (name == "dependentRequired") refuse(name, value, "lists of names");
          facts_.negates = true;
          edges.push_back(&child);
          visit(child);
        }
        return;
      case Form::kNumber:
        if (!value.is_number()) refuse(name, value, "a number");
        if (name == "multipleOf") divisor(value);
        return;
      case Form::kLimit:
        if (!value.is_number() && !value.is_boolean()) refuse(name, value, "a number");
        return;
      case Form::kCount:
        if (!value.is_number() || value.get<double>() < 0 || value.get<double>() > 1e9 ||
            value.get<double>() != double(int64_t(value.get<double>())))
          refuse(name, value, "a whole number of at most 1000000000");
        return;
      case Form::kText:
        if (!value.is_string()) refuse(name, value, "a string");
        if (name == "pattern") facts_.patterns.push_back(value.get<std::string>());
        if (name == "format") format_regex(value.get<std::string>());
        return;
      case Form::kTexts:
        if (!value.is_array()) refuse(name, value, "a list of names");
        for (const Json& text : value) {
          if (!text.is_string()) refuse(name, value, "a list of names");
          facts_.names.push_back(text.get<std::string>());
        }
        return;
      case Form::kList:
        if (!value.is_array()) refuse(name, value, "a list of values");
        return;
      case Form::kUnique:
        if (!value.is_boolean()) refuse(name, value, "a boolean");
        if (value.get<bool>() && (!schema.contains("maxItems") || schema["maxItems"] > 1))
          fail(ErrorCode::kInvalidArgument, "JSON schema: the keyword \"uniqueItems\" is not enforced");
        return;
      case Form::kType: {
        constexpr std::string_view kTypes[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
        for (const Json& type : value.is_array() ? value : Json::array({value}))
          if (!type.is_string() || std::ranges::find(kTypes, type.get<std::string>()) == std::end(kTypes))
            refuse(name, value, "a type of JSON, or a list of them");
        return;
      }
      case Form::kReference:
        if (!value.is_string()) refuse(name, value, "a reference");
        const Json& target = resolve(document_, value.get_ref<const std::string&>());
        edges.push_back(&target);
        visit(target);
    }
  }

  // A schema that speaks of its own value again, by references and branches alone, has no meaning.
  void find_loop(const Json* start) {
    std::vector<std::pair<const Json*, size_t>> path{{start, 0}};
    std::set<const Json*> open{start};
    while (!path.empty()) {
      auto& [schema, next] = path.back();
      const auto edges = same_value_.find(schema);
      if (edges == same_value_.end() || next == edges->second.size()) {
        closed_.insert(schema);
        open.erase(schema);
        path.pop_back();
        continue;
      }
      const Json* target = edges->second[next++];
      check(!open.contains(target), ErrorCode::kInvalidArgument, "JSON schema: \"$ref\" refers to itself without end");
      if (closed_.contains(target)) continue;
      open.insert(target);
      path.emplace_back(target, 0);
    }
  }

  const Json& document_;
  SchemaFacts facts_;
  std::set<const Json*> seen_, closed_;
  std::vector<const Json*> waiting_;
  std::map<const Json*, std::vector<const Json*>> same_value_;
};

std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i++) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::sscanf(std::string(text.substr(i + 1, 2)).c_str(), "%2x", &value) == 1) {
      out += char(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

SchemaFacts check_schema(const Json& document) { return Checker(document).run(); }

const Json& resolve(const Json& document, std::string_view reference) {
  const size_t hash = reference.find('#');
  const std::string_view base = reference.substr(0, hash);
  std::string_view own;
  for (const char* name : {"$id", "id"})
    if (document.is_object() && document.contains(name) && document[name].is_string())
      own = document[name].get_ref<const std::string&>();
  own = own.substr(0, own.find('#'));
  check(base.empty() || base == own, ErrorCode::kInvalidArgument,
        "JSON schema: \"$ref\": \"{}\" refers to another document, which is not supported", reference);
  const std::string pointer = hash == reference.npos ? "" : unescaped(reference.substr(hash + 1));
  try {
    return document.at(nlohmann::json_pointer<std::string>(pointer));
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::kInvalidArgument, "JSON schema: \"$ref\": \"{}\" refers to nothing (want #/path/in/the/document)",
         reference);
  }
}

bool constrains(const Json& schema) {
  if (schema.is_boolean()) return !schema.get<bool>();
  for (const auto& [name, value] : schema.items()) {
    const Keyword* known = keyword(name);
    if (known != nullptr && known->form != Form::kIgnored) return true;
  }
  return false;
}

bool has_typed_keywords(const Json& schema) {
  for (const auto& [name, value] : schema.items()) {
    const Keyword* known = keyword(name);
    if (known != nullptr && known->typed) return true;
  }
  return false;
}

namespace {

// A bit for each type that values of the schema may have; integers are numbers.
unsigned types_of(const Json& document, const Json& schema, int depth) {
  constexpr std::array<std::string_view, 7> kNames{"null", "boolean", "number", "string", "array", "object", "integer"};
  const auto bit = [&](std::string_view name) {
    return name == "integer" ? 4u : 1u << (std::ranges::find(kNames, name) - kNames.begin());
  };
  if (!schema.is_object() || depth > 8) return 63;
  unsigned types = 63;
  if (schema.contains("type") && schema["type"].is_string()) types &= bit(schema["type"].get<std::string>());
  if (schema.contains("type") && schema["type"].is_array()) {
    unsigned some = 0;
    for (const Json& type : schema["type"]) some |= type.is_string() ? bit(type.get<std::string>()) : 63;
    types &= some;
  }
  unsigned listed = 0;
  if (schema.contains("enum") && schema["enum"].is_array()) {
    for (const Json& value : schema["enum"]) listed |= bit(value.type_name());
    types &= listed;
  }
  if (schema.contains("const")) types &= bit(schema["const"].type_name());
  if (schema.contains("$ref") && schema["$ref"].is_string())
    types &= types_of(document, resolve(document, schema["$ref"].get_ref<const std::string&>()), depth + 1);
  for (const char* name : {"anyOf", "oneOf"}) {
    if (!schema.contains(name) || !schema[name].is_array()) continue;
    unsigned some = 0;
    for (const Json& branch : schema[name]) some |= types_of(document, branch, depth + 1);
    types &= some;
  }
  return types;
}

}  // namespace

bool disjoint_types(const Json& document, const Json& schemas) {
  unsigned seen = 0;
  if (!schemas.is_array()) return false;
  for (const Json& schema : schemas) {
    const unsigned types = types_of(document, schema, 0);
    if ((seen & types) != 0) return false;
    seen |= types;
  }
  return true;
}

}  // namespace octet::guides
