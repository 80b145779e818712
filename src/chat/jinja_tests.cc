// Tests: what stands behind `is`.
#include <algorithm>
#include <cmath>

#include "chat/jinja_ast.h"
#include "chat/jinja_text.h"

namespace octet::jinja {
namespace {

template <Kind kKind>
Value is_kind(Runtime&, const Call& call) {
  return Value::of(call.self.is(kKind));
}

template <bool kOdd>
Value has_parity(Runtime& runtime, const Call& call) {
  runtime.check(call.self.is_number(), "odd or even: a {}", type_name(call.self));
  return Value::of((std::fmod(call.self.as_real(), 2) != 0) == kOdd);
}

Value is_divisible(Runtime& runtime, const Call& call) {
  return Value::of(!truthy(arithmetic(runtime, Operator::kModulo, call.self, call.args[0])));
}

template <bool kDefined>
Value is_defined(Runtime&, const Call& call) {
  return Value::of(call.self.is_undefined() != kDefined);
}

template <bool kValue>
Value is_bool(Runtime&, const Call& call) {
  return Value::of(call.self.is(Kind::kBool) && call.self.boolean == kValue);
}

Value is_number(Runtime&, const Call& call) { return Value::of(call.self.is_number()); }

Value is_mapping(Runtime&, const Call& call) {
  return Value::of(call.self.is(Kind::kDict) && !call.self.dict->is_namespace);
}

Value is_sequence(Runtime& runtime, const Call& call) {
  const bool indexed = call.self.is(Kind::kList) && call.self.list->indexed();
  return Value::of(indexed || call.self.is_string() || call.self.is_undefined() || is_mapping(runtime, call).boolean);
}

Value is_iterable(Runtime& runtime, const Call& call) {
  return Value::of(call.self.is(Kind::kList) || is_sequence(runtime, call).boolean);
}

Value is_callable(Runtime&, const Call& call) {
  return Value::of(call.self.is(Kind::kFunction) || call.self.is(Kind::kLoop) || call.self.is_undefined());
}

Value is_same(Runtime&, const Call& call) { return Value::of(same_object(call.self, call.args[0])); }
Value is_in(Runtime& runtime, const Call& call) { return Value::of(contains(runtime, call.args[0], call.self)); }

template <CharacterClass kClass>
Value has_case(Runtime& runtime, const Call& call) {
  return Value::of(all_characters(runtime, to_string(runtime, call.self), kClass));
}

Value is_filter(Runtime&, const Call& call) {
  return Value::of(call.self.is_string() && find_filter(call.self.text()) != nullptr);
}
Value is_test(Runtime&, const Call& call) {
  return Value::of(call.self.is_string() && find_test(call.self.text()) != nullptr);
}
Value never(Runtime&, const Call&) { return Value::of(false); }

template <bool kEqual>
Value is_equal(Runtime& runtime, const Call& call) {
  return Value::of(equal(runtime, call.self, call.args[0]) == kEqual);
}
// By sign of the comparison.
template <bool kLess, bool kSame, bool kGreater>
Value is_ordered(Runtime& runtime, const Call& call) {
  constexpr bool kVerdicts[] = {kLess, kSame, kGreater};
  return Value::of(kVerdicts[compare(runtime, call.self, call.args[0]) + 1]);
}

constexpr Builtin kTests[] = {
    {"!=", is_equal<false>, "other"},
    {"<", is_ordered<true, false, false>, "other"},
    {"<=", is_ordered<true, true, false>, "other"},
    {"==", is_equal<true>, "other"},
    {">", is_ordered<false, false, true>, "other"},
    {">=", is_ordered<false, true, true>, "other"},
    {"boolean", is_kind<Kind::kBool>},
    {"callable", is_callable},
    {"defined", is_defined<true>},
    {"divisibleby", is_divisible, "num"},
    {"eq", is_equal<true>, "other"},
    {"equalto", is_equal<true>, "other"},
    {"escaped", never},
    {"even", has_parity<false>},
    {"false", is_bool<false>},
    {"filter", is_filter},
    {"float", is_kind<Kind::kFloat>},
    {"ge", is_ordered<false, true, true>, "other"},
    {"greaterthan", is_ordered<false, false, true>, "other"},
    {"gt", is_ordered<false, false, true>, "other"},
    {"in", is_in, "seq"},
    {"integer", is_kind<Kind::kInt>},
    {"iterable", is_iterable},
    {"le", is_ordered<true, true, false>, "other"},
    {"lessthan", is_ordered<true, false, false>, "other"},
    {"lower", has_case<CharacterClass::kLower>},
    {"lt", is_ordered<true, false, false>, "other"},
    {"mapping", is_mapping},
    {"ne", is_equal<false>, "other"},
    {"none", is_kind<Kind::kNone>},
    {"number", is_number},
    {"odd", has_parity<true>},
    {"sameas", is_same, "other"},
    {"sequence", is_sequence},
    {"string", is_kind<Kind::kString>},
    {"test", is_test},
    {"true", is_bool<true>},
    {"undefined", is_defined<false>},
    {"upper", has_case<CharacterClass::kUpper>},
};

}  // namespace

const Builtin* find_test(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kTests), std::end(kTests), [&](const Builtin& entry) { return entry.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace octet::jinja
