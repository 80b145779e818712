// Objects and arrays of JSON schemas: members in any order, items by place.
#include <algorithm>

#include "base/error.h"
#include "chat/json_schema.h"

namespace octet::guides {
namespace {

constexpr size_t kMaxClasses = 64;

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
  facts.free = needs.empty() && facts.most < 0 && std::ranges::all_of(facts.values, is_any) &&
               facts.others.size() == 1 && is_any(facts.others[0].value) && !schema.contains("propertyNames") &&
               !schema.contains("patternProperties");
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
    for (const auto& [regex, child] : schema["patternProperties"].items())
      patterns.emplace_back(pattern(regex), rule(child));
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
  Expr base = x_.both({any_string_, x_.string_rest(0, kUnbounded, exact)});
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
    check(next.size() <= kMaxClasses, ErrorCode::kInvalidArgument,
          "JSON schema: \"patternProperties\": the patterns overlap in more than {} ways", kMaxClasses);
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

bool JsonSchema::usable(const ObjectState& state, int32_t name) const {
  const ObjectFacts& facts = objects_[size_t(state.facts)];
  if (state.seen[size_t(name)] || facts.values[size_t(name)] == kNothing) return false;
  const int64_t others = missing(state) - facts.required[size_t(name)];
  return facts.most < 0 || state.count + 1 + others <= facts.most;
}

int32_t JsonSchema::find_name(const ObjectFacts& facts, const std::string& word) const {
  if (facts.words < 0) return -1;
  const auto& words = x_.word_list(facts.words);
  const auto found = std::lower_bound(words.begin(), words.end(), word);
  return found != words.end() && *found == word ? int32_t(found - words.begin()) : -1;
}

// An object may be described by several objects at once (allOf, oneOf, not): they are walked together, name by name.
template <typename Leaf>
Expr JsonSchema::combine(Expr e, const Leaf& leaf) {
  x_.count_work(10);
  const Node n = x_.node(e);
  if (n.kind == Kind::kObject) return leaf(ObjectState(states_[size_t(n.a)]));
  if (n.kind == Kind::kNot) return x_.complement(combine(n.a, leaf));
  std::vector<Expr> parts;
  const std::vector<Expr> items(x_.list(e).begin(), x_.list(e).end());
  for (const Expr item : items) parts.push_back(combine(item, leaf));
  return n.kind == Kind::kAlt ? x_.alt(parts) : n.kind == Kind::kOne ? x_.one(parts) : x_.both(parts);
}

void JsonSchema::leaves(Expr e, std::vector<int32_t>& states) const {
  const Node& n = x_.node(e);
  if (n.kind == Kind::kObject) return states.push_back(n.a);
  if (n.kind == Kind::kNot) return leaves(n.a, states);
  for (const Expr item : x_.list(e)) leaves(item, states);
}

int32_t JsonSchema::names_of(Expr object) {
  std::vector<int32_t> all;
  leaves(object, all);
  for (int32_t& index : all) index = states_[size_t(index)].facts;
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.size() == 1) return objects_[size_t(all[0])].words;
  const auto [found, added] = joined_words_.try_emplace(all, -1);
  if (!added) return found->second;
  std::vector<std::string> words;
  for (const int32_t facts : all)
    if (const int32_t list = objects_[size_t(facts)].words; list >= 0)
      words.insert(words.end(), x_.word_list(list).begin(), x_.word_list(list).end());
  const Expr joined = x_.words(std::move(words));
  return found->second = joined == kNothing ? -1 : x_.node(joined).a;
}

Expr JsonSchema::object_body(Expr e) {
  std::vector<int32_t> all;
  leaves(e, all);
  const int32_t words = names_of(e);
  const Expr close = combine(e, [&](const ObjectState& state) { return closable(state) ? kEmptyText : kNothing; });
  const Expr others = combine(e, [&](const ObjectState& state) { return other_names(state, words); });
  Expr named = kNothing;
  if (words >= 0)
    named = x_.make({.kind = Kind::kNames, .structural = true, .a = e, .c = int32_t(x_.word_list(words).size())});
  Expr object = e;  // any of the leaves tells whether a member precedes
  while (x_.node(object).kind != Kind::kObject)
    object = x_.node(object).kind == Kind::kNot ? x_.node(object).a : x_.list(object)[0];
  const Expr member = x_.concat(x_.byte('"'), x_.alt({named, others}));
  return x_.alt(
      {x_.nullable(close) ? x_.byte('}') : kNothing, x_.node(object).b != 0 ? x_.concat(comma_, member) : member});
}

// A member whose name is none of the words.
Expr JsonSchema::other_names(const ObjectState& state, int32_t words) {
  const ObjectFacts& facts = objects_[size_t(state.facts)];
  if (facts.most >= 0 && state.count + 1 + missing(state) > facts.most) return kNothing;
  const auto [found, added] = left_.try_emplace({state.facts, words}, std::vector<Expr>());
  if (added)
    for (const KeyClass& other : facts.others) {
      const bool whole = words < 0 || words == facts.words;
      found->second.push_back(whole ? other.key
                                    : x_.both({other.key, x_.string_rest(0, kUnbounded, true),
                                               x_.complement(x_.group(Unit::kString, x_.words(x_.word_list(words))))}));
    }
  ObjectState next = state;
  next.count++;
  const Expr rest = object_rest(std::move(next), false);
  std::vector<Expr> parts;
  for (size_t i = 0; i < facts.others.size(); i++)
    parts.push_back(x_.concat({found->second[i], colon_, facts.others[i].value, rest}));
  return x_.alt(parts);
}

// What follows a whole name.
Expr JsonSchema::with_name(const ObjectState& state, const std::string& word) {
  const ObjectFacts& facts = objects_[size_t(state.facts)];
  ObjectState next = state;
  next.count++;
  if (const int32_t name = find_name(facts, word); name >= 0) {
    if (!usable(state, name)) return kNothing;
    next.seen[size_t(name)] = true;
    return x_.concat({colon_, facts.values[size_t(name)], object_rest(std::move(next), false)});
  }
  if (facts.most >= 0 && state.count + 1 + missing(state) > facts.most) return kNothing;
  for (const KeyClass& other : facts.others)
    if (x_.matches(other.key, word)) return x_.concat({colon_, other.value, object_rest(std::move(next), false)});
  return kNothing;
}

bool JsonSchema::may_name(Expr e, const std::string& word) const {
  const Node& n = x_.node(e);
  if (n.kind == Kind::kNot) return true;
  if (n.kind == Kind::kObject) {
    const ObjectState& state = states_[size_t(n.a)];
    const ObjectFacts& facts = objects_[size_t(state.facts)];
    const int32_t name = find_name(facts, word);
    return name >= 0 ? usable(state, name) : !facts.others.empty();
  }
  const auto may = [&](Expr item) { return may_name(item, word); };
  return n.kind == Kind::kAnd ? std::ranges::all_of(x_.list(e), may) : std::ranges::any_of(x_.list(e), may);
}

bool JsonSchema::name_wanted(const Node& node, int32_t name) {
  const std::string& word = x_.word_list(names_of(node.a))[size_t(name)];
  std::vector<int32_t> all;
  leaves(node.a, all);
  return std::ranges::any_of(all, [&](int32_t index) {
    const ObjectState& state = states_[size_t(index)];
    const ObjectFacts& facts = objects_[size_t(state.facts)];
    const int32_t own = find_name(facts, word);
    return own >= 0 && facts.required[size_t(own)] && !state.seen[size_t(own)];
  });
}

Expr JsonSchema::name_rest(const Node& node, int32_t name) {
  const std::string& word = x_.word_list(names_of(node.a))[size_t(name)];
  if (!may_name(node.a, word)) return kNothing;
  return combine(node.a, [&](const ObjectState& state) { return with_name(state, word); });
}

Expr JsonSchema::name_step(const Node& node, uint8_t b) {
  const auto& words = x_.word_list(names_of(node.a));
  const size_t at = size_t(node.d);
  int32_t low = node.b, high = node.c;
  while (low < high && (words[size_t(low)].size() <= at || uint8_t(words[size_t(low)][at]) < b)) low++;
  while (high > low && words[size_t(high - 1)].size() > at && uint8_t(words[size_t(high - 1)][at]) > b) high--;
  const auto may = [&](const std::string& word) { return may_name(node.a, word); };
  if (std::none_of(words.begin() + low, words.begin() + high, may)) return kNothing;
  if (high - low == 1 && words[size_t(low)].size() == at + 1) return name_rest(node, low);
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

int64_t JsonSchema::ArrayFacts::counted() const { return std::max({int64_t(first.size()), least, most, int64_t(1)}); }

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
  const bool any =
      facts.first.empty() && facts.items == x_.rule(any_) && facts.least == 0 && facts.most < 0 && facts.contains < 0;
  if (any) return array_rest(0, 0, 0);
  arrays_.push_back(std::move(facts));
  return array_rest(int32_t(arrays_.size()) - 1, 0, 0);
}

Expr JsonSchema::array_rest(int32_t index, int64_t count, int64_t found) {
  const ArrayFacts& facts = arrays_[size_t(index)];
  count = std::min(count, facts.counted());
  found = std::min(found, std::max(facts.contains_least, facts.contains_most + 1));
  return x_.make({.kind = Kind::kArray,
                  .unit = Unit::kArray,
                  .structural = true,
                  .a = index,
                  .b = int32_t(count),
                  .c = int32_t(found)});
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
      next = x_.alt(
          {x_.concat(x_.both({any(), item, facts.contains}), array_rest(node.a, count + 1, found + 1)),
           x_.concat(x_.both({any(), item, x_.complement(facts.contains)}), array_rest(node.a, count + 1, found))});
    }
    parts.push_back(count > 0 ? x_.concat(comma_, next) : next);
  }
  return x_.alt(parts);
}

}  // namespace octet::guides
