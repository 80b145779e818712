// Operations on values, as Python has them: truth, equality, order, arithmetic, items, iteration.
#pragma once

#include "chat/jinja_runtime.h"

namespace octet::jinja {

std::string_view type_name(const Value& value);  // Python's, for messages
bool truthy(const Value& value);
bool equal(Runtime& runtime, const Value& a, const Value& b);
// -1, 0 or 1; an error for what has no order.
int compare(Runtime& runtime, const Value& a, const Value& b);
size_t hash_value(Runtime& runtime, const Value& value);  // an error for lists and dicts
bool contains(Runtime& runtime, const Value& container, const Value& item);
bool same_object(const Value& a, const Value& b);  // Python's `is`

enum class Operator : uint8_t { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
Value arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b);
Value negated(Runtime& runtime, const Value& value);
int64_t integer_of(Runtime& runtime, const Value& value, std::string_view what);  // an error for other types

// Items of a list or characters of a string, by an index or key; undefined where there is none.
Value get_item(Runtime& runtime, const Value& object, const Value& key);
// start:stop:step of a list or string, an error for others; each none or an integer.
Value get_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step);
// A member by its name: a dict's key, a namespace's attribute. Methods are the caller's.
Value get_member(Runtime& runtime, const Value& object, const Value& name);
// What a loop over the value goes through: items, keys, characters. Empties generators.
std::span<const Value> iterate(Runtime& runtime, const Value& value);
int64_t length_of(Runtime& runtime, const Value& value);

// Python's str() and repr().
void write(TextBuilder& out, const Value& value);
void write_repr(TextBuilder& out, const Value& value);
Value to_string(Runtime& runtime, const Value& value);
std::string float_repr(double value);

struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string_view indent = {};  // of one level
  std::string_view item_separator = ", ", key_separator = ": ";
};
void write_json(TextBuilder& out, const Value& value, const JsonStyle& style);

// Python's 'text' % values and 'text'.format(...).
Value format_percent(Runtime& runtime, const Value& format, const Value& values);
Value format_braces(Runtime& runtime, const Value& format, const Call& call);

}  // namespace octet::jinja
