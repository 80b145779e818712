// Methods of strings, lists, dicts and loops, and global functions. What would change a list or dict is left out: the
// environment of chat templates is a sandbox without it.
#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <iterator>

#include "chat/jinja_ast.h"
#include "chat/jinja_text.h"

namespace octet::jinja {
namespace {

int64_t integer_or(Runtime& runtime, const Value& value, int64_t otherwise, std::string_view what) {
  return value.is_undefined() || value.is(Kind::kNone) ? otherwise : integer_of(runtime, value, what);
}

const Value& string_argument(Runtime& runtime, const Value& value) {
  runtime.check(value.is_string(), "want a string, got a {}", type_name(value));
  return value;
}

template <LetterCase kCase>
Value change_case(Runtime& runtime, const Call& call) {
  return with_case(runtime, call.self, kCase);
}

template <bool kLeft, bool kRight>
Value strip(Runtime& runtime, const Call& call) {
  return strip_text(runtime, call.self, call.args[0], kLeft, kRight);
}

template <CharacterClass kClass>
Value is_all(Runtime& runtime, const Call& call) {
  return Value::of(all_characters(runtime, call.self, kClass));
}

Value slice_of(Runtime& runtime, const Call& call) {
  const auto bound = [](const Value& value) { return value.is_undefined() ? Value::none() : value; };
  return get_slice(runtime, call.self, bound(call.args[1]), bound(call.args[2]), Value::none());
}

// startswith and endswith: a string or a tuple of them.
template <bool kStart>
Value has_affix(Runtime& runtime, const Call& call) {
  const Value part = slice_of(runtime, call);
  const Value& wanted = call.args[0];
  const bool tuple = wanted.is(Kind::kList) && wanted.list->type == List::Type::kTuple;
  for (const Value& affix : tuple ? wanted.list->items : std::span<const Value>(&wanted, 1)) {
    const std::string_view text = string_argument(runtime, affix).text();
    runtime.charge_bytes(text.size());
    if (kStart ? part.text().starts_with(text) : part.text().ends_with(text)) return Value::of(true);
  }
  return Value::of(false);
}

template <bool kFromRight>
Value split(Runtime& runtime, const Call& call) {
  return split_text(runtime, call.self, call.args[0], integer_or(runtime, call.args[1], -1, "maxsplit"), kFromRight);
}

Value split_into_lines(Runtime& runtime, const Call& call) {
  return split_lines(runtime, call.self, truthy(call.args[0]));
}

Value replace(Runtime& runtime, const Call& call) {
  return replace_text(runtime, call.self, call.args[0], call.args[1], integer_or(runtime, call.args[2], -1, "count"));
}

Value join(Runtime& runtime, const Call& call) {
  const auto items = iterate(runtime, call.args[0]);
  for (const Value& item : items) string_argument(runtime, item);
  return join_list(runtime, items, call.self);
}

// find and rfind; index and rindex, which fail where there is nothing.
template <bool kFromRight, bool kMust>
Value find(Runtime& runtime, const Call& call) {
  const std::string_view wanted = string_argument(runtime, call.args[0]).text();
  const Value part = slice_of(runtime, call);
  const std::string_view text = part.text();
  runtime.charge_bytes(call.self.size * 2);
  const size_t found = kFromRight ? text.rfind(wanted) : text.find(wanted);
  runtime.check(!kMust || found != std::string_view::npos, "substring not found: \"{}\"", wanted);
  if (found == std::string_view::npos) return Value::of(int64_t{-1});
  int64_t begin = integer_or(runtime, call.args[1], 0, "start");
  if (begin < 0) begin = std::max<int64_t>(begin + count_characters(call.self.text()), 0);
  return Value::of(begin + count_characters(text.substr(0, found)));
}

Value count(Runtime& runtime, const Call& call) {
  const std::string_view wanted = string_argument(runtime, call.args[0]).text();
  const Value part = slice_of(runtime, call);
  runtime.charge_bytes(part.size);
  if (wanted.empty()) return Value::of(count_characters(part.text()) + 1);
  int64_t found = 0;
  for (size_t at = part.text().find(wanted); at != std::string_view::npos;
       at = part.text().find(wanted, at + wanted.size()))
    ++found;
  return Value::of(found);
}

Value format(Runtime& runtime, const Call& call) { return format_braces(runtime, call.self, call); }

template <char kAlign>
Value pad(Runtime& runtime, const Call& call) {
  const std::string_view fill = call.args[1].is_string() ? call.args[1].text() : " ";
  return pad_text(runtime, call.self, integer_of(runtime, call.args[0], "width"), fill, kAlign);
}

Value zfill(Runtime& runtime, const Call& call) {
  const int64_t width = integer_of(runtime, call.args[0], "width");
  const bool sign = call.self.text().starts_with('-') || call.self.text().starts_with('+');
  const Value digits = cut_text(runtime, call.self, sign ? 1 : 0, call.self.size);
  const Value padded = pad_text(runtime, digits, sign ? width - 1 : width, "0", '>');
  return join_texts(runtime, std::array{cut_text(runtime, call.self, 0, sign ? 1 : 0), padded});
}

template <bool kPrefix>
Value remove_affix(Runtime& runtime, const Call& call) {
  const std::string_view affix = string_argument(runtime, call.args[0]).text(), text = call.self.text();
  const bool has = kPrefix ? text.starts_with(affix) : text.ends_with(affix);
  if (!has) return call.self;
  return cut_text(runtime, call.self, kPrefix ? affix.size() : 0, text.size() - (kPrefix ? 0 : affix.size()));
}

template <bool kFromRight>
Value partition(Runtime& runtime, const Call& call) {
  const std::string_view mark = string_argument(runtime, call.args[0]).text(), text = call.self.text();
  runtime.check(!mark.empty(), "partition by an empty string");
  runtime.charge_bytes(text.size());
  const size_t found = kFromRight ? text.rfind(mark) : text.find(mark);
  const Value nothing = Value::of(std::string_view());
  if (found == std::string_view::npos)
    return kFromRight ? make_tuple(runtime, {nothing, nothing, call.self})
                      : make_tuple(runtime, {call.self, nothing, nothing});
  return make_tuple(runtime,
                    {cut_text(runtime, call.self, 0, found), cut_text(runtime, call.self, found, found + mark.size()),
                     cut_text(runtime, call.self, found + mark.size(), text.size())});
}

constexpr Builtin kStringMethods[] = {
    {"capitalize", change_case<LetterCase::kCapital>},
    {"casefold", change_case<LetterCase::kLower>},
    {"center", pad<'^'>, "width fillchar"},
    {"count", count, "sub start end"},
    {"endswith", has_affix<false>, "suffix start end"},
    {"find", find<false, false>, "sub start end"},
    {"format", format, nullptr},
    {"index", find<false, true>, "sub start end"},
    {"isalnum", is_all<CharacterClass::kAlphaOrDigit>},
    {"isalpha", is_all<CharacterClass::kAlpha>},
    {"isdecimal", is_all<CharacterClass::kDigit>},
    {"isdigit", is_all<CharacterClass::kDigit>},
    {"islower", is_all<CharacterClass::kLower>},
    {"isnumeric", is_all<CharacterClass::kDigit>},
    {"isspace", is_all<CharacterClass::kSpace>},
    {"isupper", is_all<CharacterClass::kUpper>},
    {"join", join, "iterable"},
    {"ljust", pad<'<'>, "width fillchar"},
    {"lower", change_case<LetterCase::kLower>},
    {"lstrip", strip<true, false>, "chars"},
    {"partition", partition<false>, "sep"},
    {"removeprefix", remove_affix<true>, "prefix"},
    {"removesuffix", remove_affix<false>, "suffix"},
    {"replace", replace, "old new count"},
    {"rfind", find<true, false>, "sub start end"},
    {"rindex", find<true, true>, "sub start end"},
    {"rjust", pad<'>'>, "width fillchar"},
    {"rpartition", partition<true>, "sep"},
    {"rsplit", split<true>, "sep maxsplit"},
    {"rstrip", strip<false, true>, "chars"},
    {"split", split<false>, "sep maxsplit"},
    {"splitlines", split_into_lines, "keepends"},
    {"startswith", has_affix<true>, "prefix start end"},
    {"strip", strip<true, true>, "chars"},
    {"swapcase", change_case<LetterCase::kSwapped>},
    {"title", change_case<LetterCase::kTitle>},
    {"upper", change_case<LetterCase::kUpper>},
    {"zfill", zfill, "width"},
};

Value list_count(Runtime& runtime, const Call& call) {
  int64_t found = 0;
  for (const Value& item : call.self.list->items) found += equal(runtime, item, call.args[0]) ? 1 : 0;
  return Value::of(found);
}

Value list_index(Runtime& runtime, const Call& call) {
  const auto items = call.self.list->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(runtime, items[i], call.args[0])) return Value::of(static_cast<int64_t>(i));
  }
  runtime.fail("no such item in the list");
}

constexpr Builtin kListMethods[] = {{"count", list_count, "value"}, {"index", list_index, "value"}};

Value dict_get(Runtime& runtime, const Call& call) {
  const Value* found = find_key(runtime, *call.self.dict, call.args[0]);
  if (found != nullptr) return *found;
  return call.args[1].is_undefined() ? Value::none() : call.args[1];
}

enum class DictPart : uint8_t { kKeys, kValues, kItems };
template <DictPart kPart>
Value dict_view(Runtime& runtime, const Call& call) {
  const std::span<Entry> entries = call.self.dict->entries;
  const std::span<Value> parts = runtime.array<Value>(entries.size());
  runtime.charge(std::ssize(entries) / 8);
  for (size_t i = 0; i < entries.size(); ++i) {
    parts[i] = kPart == DictPart::kKeys     ? entries[i].key
               : kPart == DictPart::kValues ? entries[i].value
                                            : make_tuple(runtime, {entries[i].key, entries[i].value});
  }
  const Value view = make_list(runtime, parts, List::Type::kView, call.self.dict->origin);
  view.list->shown = kPart == DictPart::kKeys ? "dict_keys" : kPart == DictPart::kValues ? "dict_values" : "dict_items";
  return view;
}

Value dict_copy(Runtime&, const Call& call) { return call.self; }

constexpr Builtin kDictMethods[] = {{"copy", dict_copy},
                                    {"get", dict_get, "key default"},
                                    {"items", dict_view<DictPart::kItems>},
                                    {"keys", dict_view<DictPart::kKeys>},
                                    {"values", dict_view<DictPart::kValues>}};

Value loop_cycle(Runtime& runtime, const Call& call) {
  runtime.check(!call.args.empty(), "loop.cycle() without values");
  return call.args[static_cast<size_t>(call.self.loop->at) % call.args.size()];
}

Value loop_changed(Runtime& runtime, const Call& call) {
  const Value now = make_list(runtime, call.args, List::Type::kTuple);
  Value& before = call.self.loop->last_changed;
  const bool same = !before.is_undefined() && equal(runtime, before, now);
  before = now;
  return Value::of(!same);
}

constexpr Builtin kLoopMethods[] = {{"changed", loop_changed, nullptr}, {"cycle", loop_cycle, nullptr}};

Value range(Runtime& runtime, const Call& call) {
  constexpr int64_t kLongest = 100000;  // as in Jinja2's sandbox
  const bool from_zero = call.args[1].is_undefined();
  const int64_t start = from_zero ? 0 : integer_of(runtime, call.args[0], "range");
  const int64_t stop = integer_of(runtime, call.args[from_zero ? 0 : 1], "range");
  const int64_t step = integer_or(runtime, call.args[2], 1, "range");
  runtime.check(step != 0, "range() with a step of zero");
  const double length =
      std::max(0.0, std::ceil((static_cast<double>(stop) - static_cast<double>(start)) / static_cast<double>(step)));
  runtime.check(length <= kLongest, "range() of {} items; the limit is {}", length, kLongest);
  const std::span<Value> items = runtime.array<Value>(static_cast<size_t>(length));
  runtime.charge(std::ssize(items) / 8);
  for (size_t i = 0; i < items.size(); ++i)
    items[i] = Value::of(static_cast<int64_t>(static_cast<uint64_t>(start) + i * static_cast<uint64_t>(step)));
  const Value out = make_list(runtime, items, List::Type::kRange);
  out.list->shown = runtime.copy(std::string_view(step == 1 ? fmt::format("range({}, {})", start, stop)
                                                            : fmt::format("range({}, {}, {})", start, stop, step)));
  return out;
}

// dict() and namespace(): of a dict or pairs, and of keywords.
Value collect(Runtime& runtime, const Call& call) {
  std::vector<Entry> entries;
  runtime.check(call.args.size() <= 1, "at most one argument without a name, got {}", call.args.size());
  if (!call.args.empty() && call.args[0].is(Kind::kDict)) {
    entries.assign(call.args[0].dict->entries.begin(), call.args[0].dict->entries.end());
  } else if (!call.args.empty()) {
    for (const Value& pair : iterate(runtime, call.args[0])) {
      const auto parts = iterate(runtime, pair);
      runtime.check(parts.size() == 2, "a pair of {} values", parts.size());
      entries.push_back({parts[0], parts[1]});
    }
  }
  for (const Keyword& keyword : call.keywords) entries.push_back({Value::of(keyword.name), keyword.value});
  return make_dict(runtime, entries);
}

Value make_namespace(Runtime& runtime, const Call& call) {
  const Value space = collect(runtime, call);
  for (const Entry& entry : space.dict->entries) string_argument(runtime, entry.key);
  space.dict->is_namespace = true;
  space.dict->index = {};
  return space;
}

Value raise_exception(Runtime& runtime, const Call& call) {
  runtime.fail("{}", to_string(runtime, call.args[0]).text());
}

Value strftime_now(Runtime& runtime, const Call& call) {
  const std::string pattern(string_argument(runtime, call.args[0]).text());
  const auto seconds = static_cast<std::time_t>(runtime.now());
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[512];
  const size_t length = std::strftime(text, sizeof(text), pattern.c_str(), &local);
  runtime.check(length > 0 || pattern.empty(), "strftime_now: a text of more than {} bytes", sizeof(text));
  return make_text(runtime, {text, length}, whole_origin(call.args[0]));
}

constexpr Builtin kGlobals[] = {{"dict", collect, nullptr},
                                {"namespace", make_namespace, nullptr},
                                {"raise_exception", raise_exception, "message"},
                                {"range", range, "start stop step"},
                                {"strftime_now", strftime_now, "format"}};

template <size_t kCount>
const Builtin* find_in(const Builtin (&table)[kCount], std::string_view name) {
  const auto* found = std::find_if(table, table + kCount, [&](const Builtin& entry) { return entry.name == name; });
  return found == table + kCount ? nullptr : found;
}

}  // namespace

const Builtin* find_string_method(std::string_view name) { return find_in(kStringMethods, name); }
const Builtin* find_list_method(std::string_view name) { return find_in(kListMethods, name); }
const Builtin* find_dict_method(std::string_view name) { return find_in(kDictMethods, name); }
const Builtin* find_loop_method(std::string_view name) { return find_in(kLoopMethods, name); }
const Builtin* find_global(std::string_view name) { return find_in(kGlobals, name); }

}  // namespace octet::jinja
