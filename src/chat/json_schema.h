// JSON schemas (drafts 4 to 2020-12) as expressions: what is lowered when, and the objects and arrays among the nodes.
//
// A schema is checked whole when the guide is made (json_schema_check.cc) and lowered place by place as a text comes
// there. Texts have at most one blank behind ',' and ':'; members come in any order, a name that the schema mentions
// at most once. Where a schema says more than the range of values (patterns, names, enums), and everywhere once it
// negates (not, oneOf, if), a character and a number have one spelling: complements are exact only so.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "chat/guide_expressions.h"

namespace octet::guides {

using Json = nlohmann::ordered_json;

// What the check finds in a schema document.
struct SchemaFacts {
  bool negates = false;            // complements are needed
  std::vector<std::string> names;  // of properties, anywhere
  std::vector<std::string> patterns;
};
// Throws kInvalidArgument: a malformed schema, a keyword that is not enforced, a reference that leads nowhere or round.
SchemaFacts check_schema(const Json& document);
// The schema that "$ref": `reference` names.
const Json& resolve(const Json& document, std::string_view reference);
// Whether the schemas hold values of different types only, as far as their `type`, `enum` and `const` say.
bool disjoint_types(const Json& document, const Json& schemas);
// Whether the schema constrains anything, and whether by keywords of types.
bool constrains(const Json& schema);
bool has_typed_keywords(const Json& schema);

// json_schema_number.cc: numbers behind which a text continues.
Expr number_expression(Expressions& x, const Json& schema, bool integer);
Expr number_value(Expressions& x, const Json& number);  // every spelling of one value
std::pair<uint64_t, int32_t> divisor(
    const Json& number);  // of multipleOf: an integer, and how many of its digits are decimals
// json_schema_format.cc: a regular expression; "" for what JSON Schema does not define, which constrains nothing.
std::string_view format_regex(const std::string& format);

class JsonSchema final : public NodeSource {
 public:
  // `without`: what no string holds, beside those that enum, const and names of properties spell; empty: nothing.
  JsonSchema(Expressions& expressions, std::string_view text, const GuideLimits& limits, std::string_view without = {});
  const Json& document() const { return document_; }
  Expr at(const Json& schema) { return rule(schema); }  // of the document
  Expr root() { return at(document_); }
  Expr any_object();  // the text of a JSON object, from its brace

  Expr rule_body(int32_t rule) override;
  Expr array_body(const Node& node) override;
  Expr object_body(Expr e) override;
  Expr name_step(const Node& node, uint8_t b) override;
  Expr name_rest(const Node& node, int32_t name) override;
  bool name_wanted(const Node& node, int32_t name) override;
  int32_t names_of(Expr object) override;
  std::vector<Expr> needs(const Node& node) override;
  bool universal(const Node& node) const override;

 private:
  // A rule is a schema, or only its keywords of types, or a value, or any value.
  enum class RuleKind { kSchema, kTyped, kAny, kAnyNamed };
  struct RuleFacts {
    RuleKind kind;
    const Json* schema;
  };
  struct KeyClass {
    Expr key;  // the rest of the name, with its quote
    Expr value;
  };
  struct ObjectFacts {
    int32_t words = -1;                   // names in the spelling of JSON, with their quote, sorted
    std::vector<Expr> values;             // by name; kNothing: the name must not come
    std::vector<bool> required;           // by name
    std::vector<std::vector<int>> needs;  // by name: names that must come with it
    std::vector<KeyClass> others;         // disjoint sets of other names
    int64_t least = 0, most = kUnbounded;
    bool free = false;  // once the required names have come, it holds every object
  };
  struct ObjectState {
    int32_t facts;
    int64_t count;  // of members, as far as it matters
    std::vector<bool> seen;
    auto operator<=>(const ObjectState&) const = default;
  };
  struct ArrayFacts {
    std::vector<Expr> first;
    Expr items = kNothing;
    int64_t least = 0, most = kUnbounded;
    Expr contains = -1;
    int64_t contains_least = 0, contains_most = kUnbounded;
    int64_t counted() const;  // items beyond are alike
  };

  Expr rule(const Json& schema, RuleKind kind = RuleKind::kSchema);
  Expr any() { return x_.rule(facts_.negates ? any_named_ : any_); }
  std::vector<Expr> rules(const Json& schemas);
  Expr lower(const Json& schema);
  Expr lower_typed(const Json& schema);
  Expr string_part(const Json& schema);
  Expr pattern(const std::string& regex);
  Expr values(const Json& list);
  Expr value(const Json& value);
  Expr words(std::vector<std::string> list);
  const Json& keep(Json schema) { return made_.emplace_back(std::move(schema)); }

  // json_schema_members.cc
  Expr object_part(const Json& schema);
  Expr array_part(const Json& schema);
  Expr array_rest(int32_t facts, int64_t count, int64_t found);
  int32_t object_facts(const Json& schema);
  void add_classes(const Json& schema, ObjectFacts& facts, const std::vector<std::string>& names);
  Expr object_rest(ObjectState state, bool first);
  template <typename Leaf>
  Expr combine(Expr e, const Leaf& leaf);
  void leaves(Expr e, std::vector<int32_t>& states) const;
  Expr other_names(const ObjectState& state, int32_t words);
  Expr with_name(const ObjectState& state, const std::string& word);
  bool may_name(Expr e, const std::string& word) const;
  int32_t find_name(const ObjectFacts& facts, const std::string& word) const;
  bool closable(const ObjectState& state) const;
  int64_t missing(const ObjectState& state) const;
  bool usable(const ObjectState& state, int32_t name) const;

  Expressions& x_;
  const GuideLimits limits_;
  Json document_;
  SchemaFacts facts_;
  std::deque<Json> made_;  // schemas that are not in the document
  std::map<std::pair<const Json*, RuleKind>, Expr> rule_index_;
  std::vector<RuleFacts> rules_;
  std::map<std::string, Expr> patterns_;
  std::deque<ObjectFacts> objects_;  // 0: any, 1: any that repeats no name of the document
  std::vector<ObjectState> states_;
  std::map<ObjectState, int32_t> state_index_;
  std::map<std::vector<int32_t>, int32_t> joined_words_;  // of sets of objects
  std::map<std::pair<int32_t, int32_t>, std::vector<Expr>>
      left_;                       // keys of classes of objects, without a list of words
  std::deque<ArrayFacts> arrays_;  // 0: any
  Expr comma_, colon_, any_string_;
  int32_t any_, any_named_;
};

}  // namespace octet::guides
