// Closed objects of tools' schemas: small models run on with members that nobody named.
//
// An object is closed where a value stands, never in one of the schemas that describe the value together: a branch of
// allOf would forbid what its neighbour names. A place is closed by the names of all schemas that describe it, unless
// one of them says what other members there may be. The conditions `not`, `if` and `contains` stay as they are.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/error.h"
#include "chat/call_expression.h"

namespace octet::guides {
namespace {

constexpr std::array<std::string_view, 3> kBranches = {"allOf", "anyOf", "oneOf"};

// Calls `visit` with each schema that describes the same value.
template <typename Visit>
void each_part(const Json& document, const Json& schema, const Visit& visit) {
  if (!schema.is_object()) return;
  for (const auto& [keyword, member] : schema.items()) {
    const Json& value = member;
    if (keyword == "$ref" && value.is_string()) visit(resolve(document, value.get_ref<const std::string&>()));
    if (std::ranges::find(kBranches, keyword) != kBranches.end() && value.is_array())
      for (const Json& branch : value) visit(branch);
    if (keyword == "then" || keyword == "else") visit(value);
    if (keyword == "dependentSchemas" && value.is_object())
      for (const Json& branch : value) visit(branch);
  }
}

class Closer {
 public:
  // By a list of what waits: references may lead from schema to schema many times.
  explicit Closer(const Json& document) : document_(document) {
    place(document);
    while (!waiting_.empty()) {
      const Json& schema = *waiting_.back();
      waiting_.pop_back();
      find_places(schema);
    }
  }

  Json closed(const Json& schema) const {
    if (schema.is_array()) {
      Json out = Json::array();
      for (const Json& item : schema) out.push_back(closed(item));
      return out;
    }
    if (!schema.is_object()) return schema;
    Json out = Json::object();
    for (const auto& [name, value] : schema.items()) out[name] = closed(value);
    const auto found = names_.find(&schema);
    if (found == names_.end()) return out;
    Json closure = Json::object();
    for (const std::string& name : found->second) closure["properties"][name] = true;
    closure["additionalProperties"] = false;
    bool alone = true;
    each_part(document_, schema, [&](const Json&) { alone = false; });
    if (!alone) {
      out["allOf"].push_back(std::move(closure));
    } else {
      for (const auto& [name, any] : closure["properties"].items())
        if (!out["properties"].contains(name)) out["properties"][name] = any;
      out["additionalProperties"] = false;
    }
    return out;
  }

 private:
  using Names = std::set<std::string>;

  void place(const Json& schema) {
    if (!schema.is_object() || !places_.insert(&schema).second) return;
    if (Names names = names_of(schema); !names.empty()) names_[&schema] = std::move(names);
    part(schema);
  }

  void part(const Json& schema) {
    if (schema.is_object() && parts_.insert(&schema).second) waiting_.push_back(&schema);
  }

  // The places inside of a schema that describes a value.
  void find_places(const Json& schema) {
    for (const auto& [keyword, value] : schema.items()) {
      if (keyword == "properties" || keyword == "patternProperties" || keyword == "prefixItems" ||
          (keyword == "items" && value.is_array())) {
        for (const Json& child : value) place(child);
      } else if (keyword == "items" || keyword == "additionalItems" || keyword == "additionalProperties") {
        place(value);
      }
    }
    each_part(document_, schema, [this](const Json& branch) { part(branch); });
  }

  // Names that the schemas of one value give; none: they say what other members there may be.
  Names names_of(const Json& schema) {
    std::set<const Json*> seen{&schema};
    std::vector<const Json*> parts{&schema};
    Names names;
    while (!parts.empty()) {
      const Json& part = *parts.back();
      parts.pop_back();
      check(++work_ <= kMaxWork, ErrorCode::kInvalidArgument,
            "JSON schema: references lead from its places to more than {} schemas", kMaxWork);
      for (const char* keyword : {"additionalProperties", "patternProperties", "propertyNames", "minProperties"})
        if (part.contains(keyword)) return {};
      if (part.contains("properties"))
        for (const auto& [name, child] : part["properties"].items()) names.insert(name);
      if (part.contains("required"))
        for (const Json& name : part["required"]) names.insert(name.get<std::string>());
      each_part(document_, part, [&](const Json& branch) {
        if (branch.is_object() && seen.insert(&branch).second) parts.push_back(&branch);
      });
    }
    return names;
  }

  static constexpr int64_t kMaxWork = 200'000;
  int64_t work_ = 0;
  const Json& document_;
  std::set<const Json*> places_, parts_;
  std::vector<const Json*> waiting_;
  std::map<const Json*, Names> names_;  // of the places that are closed
};

}  // namespace

Json with_closed_objects(const Json& schema) { return Closer(schema).closed(schema); }

}  // namespace octet::guides
