#include "chat/jinja_operations.h"

#include <cmath>
#include <functional>

namespace octet::jinja {

std::string_view type_name(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kList: {
      constexpr std::string_view kNames[] = {"list", "tuple", "range", "dict view", "generator"};
      return kNames[static_cast<size_t>(value.list->type)];
    }
    case Kind::kDict: return value.dict->is_namespace ? "Namespace" : "dict";
    case Kind::kFunction: return value.function->macro != nullptr ? "Macro" : "function";
    case Kind::kLoop: return "LoopContext";
  }
  return "?";
}

bool truthy(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool: return value.boolean;
    case Kind::kInt: return value.integer != 0;
    case Kind::kFloat: return value.real != 0;
    case Kind::kString: return value.size != 0;
    case Kind::kList: return value.list->type == List::Type::kGenerator || !value.list->items.empty();
    case Kind::kDict: return value.dict->is_namespace || !value.dict->entries.empty();
    case Kind::kFunction:
    case Kind::kLoop: return true;
  }
  return false;
}

bool same_object(const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kBool: return a.boolean == b.boolean;
    case Kind::kString: return a.text() == b.text();
    default: return a.integer == b.integer;  // pointers, too
  }
}

bool equal(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_integer() == b.as_integer();
    return a.as_real() == b.as_real();
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kString:
      if (a.size != b.size) return false;
      if (a.size > 256) runtime.charge_bytes(a.size);
      return a.text() == b.text();
    case Kind::kList: {
      const auto x = a.list->items, y = b.list->items;
      if (a.list == b.list) return true;
      if (a.list->type != b.list->type || !a.list->indexed() || x.size() != y.size()) return false;
      const Runtime::Nested nested(runtime);
      for (size_t i = 0; i < x.size(); ++i) {
        runtime.charge();
        if (!equal(runtime, x[i], y[i])) return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (a.dict == b.dict) return true;
      if (a.dict->is_namespace || b.dict->is_namespace) return false;
      if (a.dict->entries.size() != b.dict->entries.size()) return false;
      const Runtime::Nested nested(runtime);
      for (const Entry& entry : a.dict->entries) {
        runtime.charge();
        const Value* other = find_key(runtime, *b.dict, entry.key);
        if (other == nullptr || !equal(runtime, entry.value, *other)) return false;
      }
      return true;
    }
    default: return same_object(a, b);
  }
}

int compare(Runtime& runtime, const Value& a, const Value& b) {
  const auto sign = [](const auto& x, const auto& y) { return x < y ? -1 : static_cast<int>(y < x); };
  if (a.is_integer() && b.is_integer()) return sign(a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) return sign(a.as_real(), b.as_real());
  if (a.is_string() && b.is_string()) {
    runtime.charge_bytes(std::min(a.size, b.size));
    return sign(a.text(), b.text());
  }
  const bool lists = a.is(Kind::kList) && b.is(Kind::kList) && a.list->type == b.list->type && a.list->indexed();
  runtime.check(lists, "'{}' and '{}' cannot be compared", type_name(a), type_name(b));
  const Runtime::Nested nested(runtime);
  const auto x = a.list->items, y = b.list->items;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    runtime.charge();
    if (!equal(runtime, x[i], y[i])) return compare(runtime, x[i], y[i]);
  }
  return sign(x.size(), y.size());
}

size_t hash_value(Runtime& runtime, const Value& value) {
  switch (value.kind) {
    case Kind::kString: return std::hash<std::string_view>()(value.text());
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat: return std::hash<double>()(value.as_real());
    case Kind::kList: {
      runtime.check(value.list->type == List::Type::kTuple, "a {} cannot be a key", type_name(value));
      const Runtime::Nested nested(runtime);
      size_t hash = value.list->items.size();
      for (const Value& item : value.list->items) hash = hash * 1000003 + hash_value(runtime, item);
      return hash;
    }
    case Kind::kDict: runtime.check(value.dict->is_namespace, "a dict cannot be a key"); [[fallthrough]];
    default: return static_cast<size_t>(value.kind);
  }
}

bool contains(Runtime& runtime, const Value& container, const Value& item) {
  if (container.is_string()) {
    runtime.check(item.is_string(), "'in' expects a string to search for in a string, got {}", type_name(item));
    runtime.charge_bytes(container.size);
    return container.text().find(item.text()) != std::string_view::npos;
  }
  if (container.is(Kind::kDict) && !container.dict->is_namespace) {
    return find_key(runtime, *container.dict, item) != nullptr;
  }
  for (const Value& other : iterate(runtime, container)) {
    runtime.charge();
    if (equal(runtime, other, item)) return true;
  }
  return false;
}

namespace {

void check_defined(Runtime& runtime, const Value& value) {
  runtime.check(!value.is_undefined(), "'{}' is undefined", value.text());
}

Value integer_arithmetic(Runtime& runtime, Operator op, int64_t a, int64_t b, Origin origin) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::kAdd: overflow = __builtin_add_overflow(a, b, &result); break;
    case Operator::kSubtract: overflow = __builtin_sub_overflow(a, b, &result); break;
    case Operator::kMultiply: overflow = __builtin_mul_overflow(a, b, &result); break;
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      overflow = a == INT64_MIN && b == -1;
      if (overflow) break;
      const bool down = a % b != 0 && (a % b < 0) != (b < 0);  // Python rounds the quotient down
      result = op == Operator::kModulo ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0);
      break;
    }
    default:  // kPower, b >= 0
      result = 1;
      for (int64_t left = b; left > 0 && !overflow && result != 0 && !(a == 1); --left) {
        if (a == -1) return Value::of(b % 2 == 0 ? int64_t{1} : int64_t{-1}, origin);
        overflow = __builtin_mul_overflow(result, a, &result);
      }
  }
  runtime.check(!overflow, "integers beyond 64 bits are not supported");
  return Value::of(result, origin);
}

Value real_arithmetic(Operator op, double a, double b, Origin origin) {
  switch (op) {
    case Operator::kAdd: return Value::of(a + b, origin);
    case Operator::kSubtract: return Value::of(a - b, origin);
    case Operator::kMultiply: return Value::of(a * b, origin);
    case Operator::kDivide: return Value::of(a / b, origin);
    case Operator::kPower: return Value::of(std::pow(a, b), origin);
    default: break;
  }
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (rest == 0) rest = std::copysign(0.0, b);
  return Value::of(op == Operator::kModulo ? rest : std::round((a - rest) / b), origin);
}

Value repeated(Runtime& runtime, const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  if (value.is_string()) {
    if (value.size == 0 || count == 0) return Value::of(std::string_view());
    TextBuilder out(runtime);
    runtime.check_length(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out.append(value);
    return out.finish();
  }
  std::vector<Value> items;
  const auto from = value.list->items;
  for (int64_t i = 0; i < count && !from.empty(); ++i) {
    runtime.charge(std::ssize(from));
    items.insert(items.end(), from.begin(), from.end());
  }
  return make_list(runtime, items, value.list->type);
}

}  // namespace

Value arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};
  if (op == Operator::kAdd && a.is_string() && b.is_string()) return join_texts(runtime, std::array{a, b});
  if (a.is_number() && b.is_number()) {
    const Origin origin = both(a.origin, b.origin);
    const bool divides = op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
    const bool negative_power = op == Operator::kPower && b.as_real() < 0;
    runtime.check(!(divides && b.as_real() == 0) && !(negative_power && a.as_real() == 0), "division by zero");
    if (a.is_integer() && b.is_integer() && op != Operator::kDivide && !negative_power) {
      return integer_arithmetic(runtime, op, a.as_integer(), b.as_integer(), origin);
    }
    return real_arithmetic(op, a.as_real(), b.as_real(), origin);
  }
  if (op == Operator::kModulo && a.is_string()) return format_percent(runtime, a, b);
  check_defined(runtime, a);
  check_defined(runtime, b);
  const auto repeats = [](const Value& value) {
    return value.is_string() || (value.is(Kind::kList) && value.list->type <= List::Type::kTuple);
  };
  if (op == Operator::kMultiply && repeats(a) && b.is_integer()) return repeated(runtime, a, b.as_integer());
  if (op == Operator::kMultiply && a.is_integer() && repeats(b)) return repeated(runtime, b, a.as_integer());
  runtime.check(
      op == Operator::kAdd && repeats(a) && a.is(Kind::kList) && b.is(Kind::kList) && a.list->type == b.list->type,
      "'{}' {} '{}' is not possible", type_name(a), kSigns[static_cast<size_t>(op)], type_name(b));
  std::vector<Value> items(a.list->items.begin(), a.list->items.end());
  items.insert(items.end(), b.list->items.begin(), b.list->items.end());
  runtime.charge(std::ssize(items));
  return make_list(runtime, items, a.list->type);
}

Value negated(Runtime& runtime, const Value& value) {
  check_defined(runtime, value);
  runtime.check(value.is_number(), "a {} has no sign", type_name(value));
  if (value.is(Kind::kFloat)) return Value::of(-value.real, value.origin);
  return integer_arithmetic(runtime, Operator::kSubtract, 0, value.as_integer(), value.origin);
}

int64_t integer_of(Runtime& runtime, const Value& value, std::string_view what) {
  runtime.check(value.is_integer(), "{}: a {} (want an integer)", what, type_name(value));
  return value.as_integer();
}

namespace {

Value character_at(Runtime& runtime, const Value& string, int64_t index) {
  const std::string_view text = string.text();
  runtime.charge_bytes(text.size());
  if (index < 0) index += count_characters(text);
  if (index < 0) return absent();
  const size_t at = byte_of_character(text, index);
  if (at == text.size()) return absent();
  return cut_text(runtime, string, at, at + byte_of_character(text.substr(at), 1));
}

// Python's slice.indices.
struct SliceRange {
  int64_t start, step, count;
};
SliceRange slice_range(Runtime& runtime, int64_t length, const Value& start, const Value& stop, const Value& step) {
  const auto given = [](const Value& value) { return !value.is(Kind::kNone); };
  const int64_t by = given(step) ? integer_of(runtime, step, "the step of a slice") : 1;
  runtime.check(by != 0, "the step of a slice is zero");
  const int64_t low = by < 0 ? -1 : 0, high = by < 0 ? length - 1 : length;
  const auto place = [&](const Value& value, int64_t otherwise) {
    if (!given(value)) return otherwise;
    const int64_t at = integer_of(runtime, value, "the end of a slice");
    return std::clamp(at < 0 ? at + length : at, low, high);
  };
  const int64_t from = place(start, by < 0 ? high : low), to = place(stop, by < 0 ? low : high);
  const int64_t span = by < 0 ? from - to : to - from;
  if (span <= 0) return {from, by, 0};
  const int64_t stride = by < 0 ? (by == INT64_MIN ? INT64_MAX : -by) : by;
  return {from, by, (span - 1) / stride + 1};
}

}  // namespace

Value get_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step) {
  check_defined(runtime, object);
  if (object.is_string()) {
    const std::string_view text = object.text();
    runtime.charge_bytes(text.size());
    const SliceRange range = slice_range(runtime, count_characters(text), start, stop, step);
    if (range.count == 0) return Value::of(std::string_view());
    if (range.step == 1) {
      const size_t begin = byte_of_character(text, range.start);
      return cut_text(runtime, object, begin, begin + byte_of_character(text.substr(begin), range.count));
    }
    const auto characters = iterate(runtime, object);
    TextBuilder out(runtime);
    for (int64_t i = 0; i < range.count; ++i) out.append(characters[static_cast<size_t>(range.start + i * range.step)]);
    return out.finish();
  }
  runtime.check(object.is(Kind::kList) && object.list->indexed(), "a {} cannot be sliced", type_name(object));
  const auto items = object.list->items;
  const SliceRange range = slice_range(runtime, std::ssize(items), start, stop, step);
  const auto count = static_cast<size_t>(range.count);
  if (range.step == 1 || count == 0)
    return make_list(runtime, items.subspan(count == 0 ? 0 : static_cast<size_t>(range.start), count),
                     object.list->type, object.list->origin);
  const std::span<Value> picked = runtime.array<Value>(count);
  runtime.charge(range.count / 8);
  for (size_t i = 0; i < count; ++i)
    picked[i] = items[static_cast<size_t>(range.start + static_cast<int64_t>(i) * range.step)];
  return make_list(runtime, picked, object.list->type, object.list->origin);
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  check_defined(runtime, object);
  if (object.is(Kind::kDict)) {
    if (key.is(Kind::kList) || key.is(Kind::kDict)) return absent();
    const Value* found = find_key(runtime, *object.dict, key);
    return found != nullptr ? *found : absent();
  }
  if (object.is_string() && key.is_integer()) return character_at(runtime, object, key.as_integer());
  if (!object.is(Kind::kList) || !object.list->indexed() || !key.is_integer()) return absent();
  const int64_t length = std::ssize(object.list->items);
  const int64_t at = key.as_integer() < 0 ? key.as_integer() + length : key.as_integer();
  return at >= 0 && at < length ? object.list->items[static_cast<size_t>(at)] : absent();
}

Value get_member(Runtime& runtime, const Value& object, const Value& name) {
  check_defined(runtime, object);
  if (!object.is(Kind::kDict)) return absent();
  const Value* found = find_key(runtime, *object.dict, name);
  return found != nullptr ? *found : absent();
}

std::span<const Value> iterate(Runtime& runtime, const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined: return {};
    case Kind::kList:
      if (value.list->type != List::Type::kGenerator) return value.list->items;
      return std::exchange(value.list->items, {});
    case Kind::kDict: {
      if (value.dict->is_namespace) break;
      const std::span<Value> keys = runtime.array<Value>(value.dict->entries.size());
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = value.dict->entries[i].key;
      return keys;
    }
    case Kind::kString: {
      const std::string_view text = value.text();
      runtime.charge(static_cast<int64_t>(text.size() / 8));
      const std::span<Value> characters = runtime.array<Value>(static_cast<size_t>(count_characters(text)));
      size_t at = 0;
      for (Value& character : characters) {
        const size_t end = at + byte_of_character(text.substr(at), 1);
        character = cut_text(runtime, value, at, end);
        at = end;
      }
      return characters;
    }
    default: break;
  }
  runtime.fail("'{}' object is not iterable", type_name(value));
}

int64_t length_of(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return runtime.charge_bytes(value.size), count_characters(value.text());
  if (value.is(Kind::kDict) && !value.dict->is_namespace) return std::ssize(value.dict->entries);
  runtime.check(value.is(Kind::kList) && value.list->type != List::Type::kGenerator,
                "object of type '{}' has no length", type_name(value));
  return std::ssize(value.list->items);
}

}  // namespace octet::jinja
