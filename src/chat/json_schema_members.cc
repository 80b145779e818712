// Objects and arrays of JSON schemas: members in any order, items by place.
#include <algorithm>

#include "base/error.h"
#include "chat/json_schema.h"

namespace octet::guides {
namespace {

constexpr size_t kMostClasses = 64;

int64_t count_of(const Json& schema, const char* name, int64_t otherwise) {
  return schema.contains(name) ? int64_t(schema[name].get<double>()) : otherwise;
}

}  // namespace

Expr JsonSchema::object_part(const Json& schema) {
  for (const char* name : {"properties", "patternProperties", "additionalProperties", "propertyNames", "required",
                           "minProperties", "maxProperties", "dependencies", "dependentRequired"}) {
    if (!schema.contains(name)) continue;
    const int32_t facts = object_facts(schema);
    return object_rest({facts, 0, std::vector<bool>(objects_[size_t(facts)].values.size())}, true);
  }
  return object_rest({0, 0, {}}, true);
}

int32_t JsonSchema::object_facts(const Json& schema) {
  std::vector<std::string> names;
  const Json none = Json::object();
  const auto member = [&](const char* name) -> const Json& { return schema.contains(name) ? schema[name] : none; };
  for (const auto& [name, child] : member("properties").items()) names.push_back(name);
  for (const Json& name : member("required")) names.push_back(name.get<std::string>());
  std::vector<std::pair<std::string, std::string>> needs;
  for (const char* keyword : {"dependencies", "dependentRequired"}) {
    for (const auto& [name, others] : member(keyword).items()) {
      if (!others.is_array() && !others.is_string()) continue;
      for (const Json& other : others) needs.emplace_back(name, other.get<std::string>());
    }
  }
  for (const auto& [name, other] : needs) names.push_back(name), names.push_back(other);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());

  ObjectFacts facts;
  add_classes(schema, facts, names);
  const auto index = [&](const std::string& name) {
    const std::string word = Json(name).dump(-1, ' ', false, Json::error_handler_t::replace).substr(1);
    const auto& words = x_.word_list(facts.words);
    return size_t(std::lower_bound(words.begin(), words.end(), word) - words.begin());
  };
  for (const Json& name : member("required")) facts.required[index(name.get<std::string>())] = true;
  for (const auto& [name, other] : needs) facts.needs[index(name)].push_back(int(index(other)));
  facts.least = count_of(schema, "minProperties", 0);
  facts.most = count_of(schema, "maxProperties", kUnbounded);
  const auto is_any = [&](Expr e) { return x_.node(e).kind == Kind::kRule && universal(x_.node(e)); };
  facts.free = needs.empty() && facts.most < 0 && std::ranges::all_of(facts.values, is_any) && facts.others.size() == 1 &&
               is_any(facts.others[0].value) && !schema.contains("propertyNames") && !schema.contains("patternProperties");
  objects_.push_back(std::move(facts));
  return int32_t(objects_.size()) - 1;
}

// Names and classes of other names, with the values that each may have.
void JsonSchema::add_classes(const Json& schema, ObjectFacts& facts, const std::vector<std::string>& names) {
  std::vector<std::string> words;
  for (const std::string& name : names)
    words.push_back(Json(name).dump(-1, ' ', false, Json::error_handler_t::replace).substr(1));
  const Expr all_words = x_.words(words);
  const Expr others = schema.contains("additionalProperties") ? rule(schema["additionalProperties"]) : x_.rule(any_);
  std::vector<std::pair<Expr, Expr>> patterns;  // of names, of their values
  if (schema.contains("patternProperties"))
    for (const auto& [regex, child] : schema["patternProperties"].items()) patterns.emplace_back(pattern(regex), rule(child));
  const bool limited = schema.contains("propertyNames");
  const Expr allowed = limited ? x_.derive(rule(schema["propertyNames"]), '"') : kNothing;

  if (all_words != kNothing) {
    facts.words = x_.node(all_words).a;
    const auto& sorted = x_.word_list(facts.words);
    facts.values.assign(sorted.size(), kNothing);
    facts.required.assign(sorted.size(), false);
    facts.needs.resize(sorted.size());
    for (size_t i = 0; i < names.size(); i++) {
      std::vector<Expr> values;
      const bool named = schema.contains("properties") && schema["properties"].contains(names[i]);
      if (named) values.push_back(rule(schema["properties"][names[i]]));
      bool matched = named;
      for (const auto& [pattern, value] : patterns)
        if (x_.matches(pattern, words[i])) values.push_back(value), matched = true;
      if (!matched) values.push_back(others);
      if (limited && !x_.matches(allowed, words[i])) values.push_back(kNothing);
      facts.values[size_t(std::lower_bound(sorted.begin(), sorted.end(), words[i]) - sorted.begin())] = x_.both(values);
    }
  }

  const bool exact = all_words != kNothing || !patterns.empty() || limited;
  Expr base = x_.string_rest(0, kUnbounded, exact);
  if (limited) base = x_.both({base, allowed});
  if (all_words != kNothing) base = x_.both({base, x_.complement(x_.group(Unit::kString, all_words))});
  std::vector<std::pair<Expr, std::vector<Expr>>> classes{{base, {}}};
  for (const auto& [pattern, value] : patterns) {
    std::vector<std::pair<Expr, std::vector<Expr>>> next;
    for (auto& [key, values] : classes) {
      next.emplace_back(x_.both({key, x_.complement(pattern)}), values);
      values.push_back(value);
      next.emplace_back(x_.both({key, pattern}), std::move(values));
    }
    std::erase_if(next, [&](const auto& c) { return c.first == kNothing || !x_.alive(c.first); });
    check(next.size() <= kMostClasses, ErrorCode::kInvalidArgument,
          "JSON schema: \"patternProperties\": the patterns overlap in more than {} ways", kMostClasses);
    classes = std::move(next);
  }
  for (auto& [key, values] : classes) {
    if (values.empty()) values.push_back(others);
    const Expr value = x_.both(values);
    if (value != kNothing && x_.alive(key)) facts.others.push_back({key, value});
  }
}

Expr JsonSchema::object_rest(ObjectState state, bool first) {
  const ObjectFacts& facts = objects_[size_t(state.facts)];
  state.count = std::min(state.count, std::max(facts.least, facts.most + 1));
  if (facts.free && state.count >= facts.least && missing(state) == 0) state = {0, 0, {}};
  const auto [found, added] = state_index_.try_emplace(state, int32_t(states_.size()));
  if (added) states_.push_back(state);
  return x_.make({.kind = Kind::kObject, .unit = Unit::kObject, .structural = true, .a = found->second, .b = !first});
}

int64_t JsonSchema::missing(const ObjectState& state) const {
  const ObjectFacts& facts = objects_[size_t(state.facts)];
  int64_t count = 0;
  for (size_t i = 0; i < facts.required.size(); i++) count += facts.required[i] && !state.seen[i];
  return count;
}

bool JsonSchema::closable(const ObjectState& state) const {
  const ObjectFacts& facts = objects_[size_t(state.facts)];
  if (state.count < facts.least || missing(state) > 0) return false;
  for (size_t i = 0; i < state.seen.size(); i++)
    if (state.seen[i] && std::ranges::any_of(facts.needs[i], [&](int other) { return !state.seen[size_t(other)]; }))
      return false;
  return true;
}

JsonSchema::ObjectState JsonSchema::with_name(const ObjectState& state, int32_t name) const {
  ObjectState next = state;
  next.seen[size_t(name)] = true;
  next.count++;
  return next;
}

bool JsonSchema::usable(const ObjectState& state, int32_t name) const {
  const ObjectFacts& facts = objects_[size_t(state.facts)];
  if (state.seen[size_t(name)] || facts.values[size_t(name)] == kNothing) return false;
  const int64_t others = missing(state) - facts.required[size_t(name)];
  return facts.most < 0 || state.count + 1 + others <= facts.most;
}

int32_t JsonSchema::names_of(const Node& node) const { return objects_[size_t(states_[size_t(node.a)].facts)].words; }

Expr JsonSchema::object_body(const Node& node) {
  const ObjectState state = states_[size_t(node.a)];
  const ObjectFacts& facts = objects_[size_t(state.facts)];
  std::vector<Expr> keys;
  for (int32_t i = 0; i < int32_t(facts.values.size()); i++) {
    if (!usable(state, i)) continue;
    keys.push_back(x_.make({.kind = Kind::kNames, .structural = true, .a = node.a, .b = 0, .c = int32_t(facts.values.size())}));
    break;
  }
  if (facts.most < 0 || state.count + 1 + missing(state) <= facts.most) {
    ObjectState next = state;
    next.count++;
    const Expr rest = object_rest(std::move(next), false);
    for (const KeyClass& other : facts.others) keys.push_back(x_.concat({other.key, colon_, other.value, rest}));
  }
  Expr member = x_.concat(x_.byte('"'), x_.alt(std::move(keys)));
  if (node.b != 0) member = x_.concat(comma_, member);
  return x_.alt({closable(state) ? x_.byte('}') : kNothing, member});
}

Expr JsonSchema::name_step(const Node& node, uint8_t b) {
  const ObjectState state = states_[size_t(node.a)];
  const ObjectFacts& facts = objects_[size_t(state.facts)];
  const auto& words = x_.word_list(facts.words);
  const size_t at = size_t(node.d);
  int32_t low = node.b, high = node.c;
  while (low < high && (words[size_t(low)].size() <= at || uint8_t(words[size_t(low)][at]) < b)) low++;
  while (high > low && words[size_t(high - 1)].size() > at && uint8_t(words[size_t(high - 1)][at]) > b) high--;
  int32_t count = 0, last = -1;
  for (int32_t i = low; i < high && count < 2; i++)
    if (usable(state, i)) count++, last = i;
  if (count == 0) return kNothing;
  const Expr value = facts.values[size_t(last)];
  if (count == 1 && !x_.alive(value)) return kNothing;
  if (high - low == 1 && words[size_t(low)].size() == at + 1)
    return x_.concat({colon_, value, object_rest(with_name(state, low), false)});
  return x_.make({.kind = Kind::kNames, .structural = true, .a = node.a, .b = low, .c = high, .d = node.d + 1});
}

std::vector<Expr> JsonSchema::needs(const Node& node) {
  std::vector<Expr> out;
  if (node.kind == Kind::kArray) {
    const ArrayFacts& facts = arrays_[size_t(node.a)];
    for (int64_t i = node.b; i < facts.least; i++) {
      const bool listed = i < int64_t(facts.first.size());
      out.push_back(listed ? facts.first[size_t(i)] : facts.items);
      if (!listed) break;
    }
    return out;
  }
  const ObjectState& state = states_[size_t(node.a)];
  const ObjectFacts& facts = objects_[size_t(state.facts)];
  for (size_t i = 0; i < facts.required.size(); i++)
    if (facts.required[i] && !state.seen[i]) out.push_back(facts.values[i]);
  if (facts.most >= 0 && state.count + missing(state) > facts.most) out.push_back(kNothing);
  return out;
}

int64_t JsonSchema::ArrayFacts::counted() const {
  return std::max({int64_t(first.size()), least, most, int64_t(1)});
}

Expr JsonSchema::array_part(const Json& schema) {
  ArrayFacts facts{.items = x_.rule(any_)};
  const bool listed = schema.contains("items") && schema["items"].is_array();
  if (listed || schema.contains("prefixItems")) facts.first = rules(schema[listed ? "items" : "prefixItems"]);
  const char* others = listed ? "additionalItems" : "items";
  if (schema.contains(others)) facts.items = rule(schema[others]);
  facts.least = count_of(schema, "minItems", 0);
  facts.most = count_of(schema, "maxItems", kUnbounded);
  if (schema.contains("contains")) {
    facts.contains = rule(schema["contains"]);
    facts.contains_least = count_of(schema, "minContains", 1);
    facts.contains_most = count_of(schema, "maxContains", kUnbounded);
  }
  const bool any = facts.first.empty() && facts.items == x_.rule(any_) && facts.least == 0 && facts.most < 0 && facts.contains < 0;
  if (any) return array_rest(0, 0, 0);
  arrays_.push_back(std::move(facts));
  return array_rest(int32_t(arrays_.size()) - 1, 0, 0);
}

Expr JsonSchema::array_rest(int32_t index, int64_t count, int64_t found) {
  const ArrayFacts& facts = arrays_[size_t(index)];
  count = std::min(count, facts.counted());
  found = std::min(found, std::max(facts.contains_least, facts.contains_most + 1));
  return x_.make({.kind = Kind::kArray, .unit = Unit::kArray, .structural = true, .a = index, .b = int32_t(count), .c = int32_t(found)});
}

Expr JsonSchema::array_body(const Node& node) {
  const ArrayFacts facts = arrays_[size_t(node.a)];
  const int64_t count = node.b, found = node.c;
  std::vector<Expr> parts;
  const bool enough = found >= facts.contains_least && (facts.contains_most < 0 || found <= facts.contains_most);
  if (count >= facts.least && enough) parts.push_back(x_.byte(']'));
  if (facts.most < 0 || count < facts.most) {
    const Expr item = count < int64_t(facts.first.size()) ? facts.first[size_t(count)] : facts.items;
    Expr next;
    if (facts.contains < 0 || (found >= facts.contains_least && facts.contains_most < 0)) {
      next = x_.concat(item, array_rest(node.a, count + 1, found));
    } else {
      next = x_.alt({x_.concat(x_.both({any(), item, facts.contains}), array_rest(node.a, count + 1, found + 1)),
                     x_.concat(x_.both({any(), item, x_.complement(facts.contains)}), array_rest(node.a, count + 1, found))});
    }
    parts.push_back(count > 0 ? x_.concat(comma_, next) : next);
  }
  return x_.alt(std::move(parts));
}

}  // namespace octet::guides
