#include "chat/jinja_sequences.h"

#include <algorithm>
#include <charconv>

#include "chat/jinja_ast.h"
#include "chat/jinja_text.h"

namespace octet::jinja {
namespace {

Value generator(Runtime& runtime, const std::vector<Value>& items) {
  const Value out = make_list(runtime, items, List::Type::kGenerator);
  out.list->shown = "<generator object>";
  return out;
}

// map, select and their kin take none and false for nothing.
std::span<const Value> iterate_if_any(Runtime& runtime, const Value& value) {
  return truthy(value) ? iterate(runtime, value) : std::span<const Value>();
}

// `path` of an item: "name", "name.0.name" or a number; absent: the item itself.
Value by_path(Runtime& runtime, const Value& item, const Value& path) {
  if (path.is_undefined() || path.is(Kind::kNone)) return item;
  if (!path.is_string()) return get_item(runtime, item, path);
  Value at = item;
  for (std::string_view rest = path.text(); !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = read.ec == std::errc() && read.ptr == part.data() + part.size() && part[0] != '-';
    at = number ? get_item(runtime, at, Value::of(index)) : get_member(runtime, at, Value::of(part));
  }
  return at;
}

// What an item is compared by: its attribute, or several as a tuple; lower case unless told otherwise.
Value key_of(Runtime& runtime, const Value& item, const Value& path, bool with_case_kept) {
  if (path.is_string() && path.text().find(',') != std::string_view::npos) {
    std::vector<Value> keys;
    for (std::string_view rest = path.text(); !rest.empty();) {
      const std::string_view one = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(one.size() + 1, rest.size()));
      keys.push_back(key_of(runtime, item, Value::of(one), with_case_kept));
    }
    return make_list(runtime, keys, List::Type::kTuple);
  }
  const Value key = by_path(runtime, item, path);
  return key.is_string() && !with_case_kept ? with_case(runtime, key, LetterCase::kLower) : key;
}

std::vector<Entry> keyed(Runtime& runtime, const Value& values, const Value& path, bool with_case_kept) {
  std::vector<Entry> out;
  for (const Value& item : iterate(runtime, values)) {
    runtime.charge();
    out.push_back({key_of(runtime, item, path, with_case_kept), item});
  }
  return out;
}

void sort_by_key(Runtime& runtime, std::vector<Entry>& entries, bool reverse) {
  std::stable_sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
    runtime.charge();
    if (equal(runtime, a.key, b.key)) return false;  // has no order where it is undefined
    return reverse ? compare(runtime, b.key, a.key) < 0 : compare(runtime, a.key, b.key) < 0;
  });
}

Value values_of(Runtime& runtime, const std::vector<Entry>& entries) {
  std::vector<Value> values;
  for (const Entry& entry : entries) values.push_back(entry.value);
  return make_list(runtime, values);
}

Value extreme(Runtime& runtime, const Call& call, int sign) {
  const auto entries = keyed(runtime, call.self, call.args[1], truthy(call.args[0]));
  const Entry* best = entries.empty() ? nullptr : entries.data();
  for (const Entry& entry : entries) {
    if (compare(runtime, entry.key, best->key) * sign > 0) best = &entry;
  }
  return best != nullptr ? best->value : Value::undefined("item of an empty sequence");
}

// select and its kin: `attributes`: the test is of the attribute that the first argument names.
Value filtered(Runtime& runtime, const Call& call, bool wanted, bool attributes) {
  auto args = call.args;
  Value path = absent();
  if (attributes) {
    runtime.check(!args.empty(), "the name of an attribute is missing");
    path = args[0], args = args.subspan(1);
  }
  const Builtin* test = nullptr;
  if (!args.empty()) {
    runtime.check(args[0].is_string(), "the name of a test is a {}", type_name(args[0]));
    test = find_test(args[0].text());
    runtime.check(test != nullptr, "unknown test \"{}\"", args[0].text());
  }
  std::vector<Value> kept;
  for (const Value& item : iterate_if_any(runtime, call.self)) {
    runtime.charge();
    const Value subject = by_path(runtime, item, path);
    const Value verdict = test != nullptr ? runtime.invoke(*test, {subject, args.subspan(1), call.keywords}) : subject;
    if (truthy(verdict) == wanted) kept.push_back(item);
  }
  return generator(runtime, kept);
}

}  // namespace

Value attribute(Runtime& runtime, const Call& call) {
  const Value found = get_member(runtime, call.self, call.args[0]);
  return is_absent(found) ? Value::undefined("attribute") : found;
}

Value batch(Runtime& runtime, const Call& call) {
  const int64_t size = integer_of(runtime, call.args[0], "linecount");
  runtime.check(size > 0, "batches of {}", size);
  std::vector<Value> batches, one;
  const auto items = iterate(runtime, call.self);
  for (size_t i = 0; i < items.size(); ++i) {
    one.push_back(items[i]);
    if (std::ssize(one) < size && i + 1 < items.size()) continue;
    runtime.charge();
    runtime.check(call.args[1].is_undefined() || size <= 100000, "batches of {}", size);
    if (!call.args[1].is_undefined()) one.resize(static_cast<size_t>(size), call.args[1]);
    batches.push_back(make_list(runtime, one));
    one.clear();
  }
  return generator(runtime, batches);
}

Value slice(Runtime& runtime, const Call& call) {
  const int64_t count = integer_of(runtime, call.args[0], "slices");
  runtime.check(count > 0 && count <= 100000, "{} slices", count);
  const auto items = iterate(runtime, call.self);
  const size_t each = items.size() / static_cast<size_t>(count), longer = items.size() % static_cast<size_t>(count);
  std::vector<Value> slices;
  size_t begin = 0;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const size_t size = each + (i < longer ? 1 : 0);
    std::vector<Value> one(items.begin() + static_cast<std::ptrdiff_t>(begin),
                           items.begin() + static_cast<std::ptrdiff_t>(begin + size));
    if (!call.args[1].is_undefined() && i >= longer) one.push_back(call.args[1]);
    slices.push_back(make_list(runtime, one));
    begin += size;
  }
  return generator(runtime, slices);
}

Value dictsort(Runtime& runtime, const Call& call) {
  runtime.check(call.self.is(Kind::kDict), "dictsort of a {}", type_name(call.self));
  const bool by_value = call.args[1].is_string() && call.args[1].text() == "value";
  std::vector<Entry> entries;
  for (const Entry& entry : call.self.dict->entries) {
    const Value& by = by_value ? entry.value : entry.key;
    entries.push_back(
        {key_of(runtime, by, absent(), truthy(call.args[0])), make_tuple(runtime, {entry.key, entry.value})});
  }
  sort_by_key(runtime, entries, truthy(call.args[2]));
  return values_of(runtime, entries);
}

Value first(Runtime& runtime, const Call& call) {
  if (call.self.is_string() && call.self.size > 0) return get_item(runtime, call.self, Value::of(int64_t{0}));
  const auto items = iterate(runtime, call.self);
  return items.empty() ? Value::undefined("first item of an empty sequence") : items[0];
}

Value last(Runtime& runtime, const Call& call) {
  if (call.self.is_string() && call.self.size > 0) return get_item(runtime, call.self, Value::of(int64_t{-1}));
  const auto items = iterate(runtime, call.self);
  return items.empty() ? Value::undefined("last item of an empty sequence") : items.back();
}

Value greatest(Runtime& runtime, const Call& call) { return extreme(runtime, call, 1); }
Value least(Runtime& runtime, const Call& call) { return extreme(runtime, call, -1); }

Value groupby(Runtime& runtime, const Call& call) {
  std::vector<Entry> entries;
  for (const Value& item : iterate(runtime, call.self)) {
    runtime.charge();
    Value key = by_path(runtime, item, call.args[0]);
    if (key.is_undefined()) key = call.args[1];
    if (key.is_string() && !truthy(call.args[2])) key = with_case(runtime, key, LetterCase::kLower);
    entries.push_back({key, item});
  }
  sort_by_key(runtime, entries, false);
  std::vector<Value> groups, members;
  for (size_t i = 0; i < entries.size(); ++i) {
    members.push_back(entries[i].value);
    if (i + 1 < entries.size() && equal(runtime, entries[i].key, entries[i + 1].key)) continue;
    const Value key = by_path(runtime, members[0], call.args[0]);
    groups.push_back(make_tuple(runtime, {key.is_undefined() ? entries[i].key : key, make_list(runtime, members)}));
    members.clear();
  }
  return make_list(runtime, groups);
}

Value items(Runtime& runtime, const Call& call) {
  std::vector<Value> pairs;
  if (!call.self.is_undefined()) {
    runtime.check(call.self.is(Kind::kDict) && !call.self.dict->is_namespace, "items of a {} (want a dict)",
                  type_name(call.self));
    for (const Entry& entry : call.self.dict->entries) pairs.push_back(make_tuple(runtime, {entry.key, entry.value}));
  }
  return generator(runtime, pairs);
}

Value join(Runtime& runtime, const Call& call) {
  std::vector<Value> parts;
  for (const Value& item : iterate(runtime, call.self)) parts.push_back(by_path(runtime, item, call.args[1]));
  return join_list(runtime, parts, to_string(runtime, call.args[0]));
}

Value length(Runtime& runtime, const Call& call) { return Value::of(length_of(runtime, call.self)); }

Value list(Runtime& runtime, const Call& call) {
  const Origin origin = call.self.is(Kind::kList) ? call.self.list->origin : Origin::kTemplate;
  return make_list(runtime, iterate(runtime, call.self), List::Type::kList, origin);
}

Value map(Runtime& runtime, const Call& call) {
  const auto keyword = [&](std::string_view name) {
    const auto found =
        std::find_if(call.keywords.begin(), call.keywords.end(), [&](const Keyword& k) { return k.name == name; });
    return found != call.keywords.end() ? found->value : absent();
  };
  const Value path = keyword("attribute"), otherwise = keyword("default");
  const Builtin* filter = nullptr;
  if (is_absent(path)) {
    runtime.check(!call.args.empty() && call.args[0].is_string(), "map expects the name of a filter, or attribute=");
    filter = find_filter(call.args[0].text());
    runtime.check(filter != nullptr, "unknown filter \"{}\"", call.args[0].text());
  }
  std::vector<Value> out;
  for (const Value& item : iterate_if_any(runtime, call.self)) {
    runtime.charge();
    if (filter != nullptr) {
      out.push_back(runtime.invoke(*filter, {item, call.args.subspan(1), call.keywords}));
    } else {
      const Value found = by_path(runtime, item, path);
      const Value missing = is_absent(otherwise) ? Value::undefined("attribute") : otherwise;
      out.push_back(found.is_undefined() ? missing : found);
    }
  }
  return generator(runtime, out);
}

Value reject(Runtime& runtime, const Call& call) { return filtered(runtime, call, false, false); }
Value rejectattr(Runtime& runtime, const Call& call) { return filtered(runtime, call, false, true); }
Value select(Runtime& runtime, const Call& call) { return filtered(runtime, call, true, false); }
Value selectattr(Runtime& runtime, const Call& call) { return filtered(runtime, call, true, true); }

Value reverse(Runtime& runtime, const Call& call) {
  if (call.self.is_string()) return get_slice(runtime, call.self, Value::none(), Value::none(), Value::of(int64_t{-1}));
  const auto items = iterate(runtime, call.self);
  return generator(runtime, std::vector<Value>(items.rbegin(), items.rend()));
}

Value sort(Runtime& runtime, const Call& call) {
  auto entries = keyed(runtime, call.self, call.args[2], truthy(call.args[1]));
  sort_by_key(runtime, entries, truthy(call.args[0]));
  return values_of(runtime, entries);
}

Value sum(Runtime& runtime, const Call& call) {
  Value total = call.args[1].is_undefined() ? Value::of(int64_t{0}) : call.args[1];
  for (const Value& item : iterate(runtime, call.self)) {
    runtime.charge();
    total = arithmetic(runtime, Operator::kAdd, total, by_path(runtime, item, call.args[0]));
  }
  return total;
}

Value unique(Runtime& runtime, const Call& call) {
  const auto entries = keyed(runtime, call.self, call.args[1], truthy(call.args[0]));
  std::vector<Entry> places;  // from the last to the first: a dict keeps the last value of a key
  for (size_t i = entries.size(); i-- > 0;) places.push_back({entries[i].key, Value::of(static_cast<int64_t>(i))});
  const Value first_places = make_dict(runtime, places);
  std::vector<Value> kept;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Value* place = find_key(runtime, *first_places.dict, entries[i].key);
    if (place->integer == static_cast<int64_t>(i)) kept.push_back(entries[i].value);
  }
  return generator(runtime, kept);
}

}  // namespace octet::jinja
