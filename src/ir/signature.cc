#include "ir/signature.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/dtype.h"
#include "base/error.h"
#include "ir/text.h"
#include "ir/text_words.h"

namespace octet {

namespace {

using text::split_list, text::trim;

std::string_view next_word(std::string_view& text) {
  const size_t end = std::min(text.find(' '), text.size());
  std::string_view word = text.substr(0, end);
  text = trim(text.substr(end));
  return word;
}

double to_double(std::string_view word) {
  double value = 0;
  check(text::read_number(word, value), ErrorCode::kInternal, "ops.def: '{}' is no number", word);
  return value;
}

Attr default_of(const AttrSpec& spec, std::string_view word) {
  if (std::holds_alternative<int64_t>(spec.fallback)) return static_cast<int64_t>(to_double(word));
  if (std::holds_alternative<double>(spec.fallback)) return to_double(word);
  if (std::holds_alternative<bool>(spec.fallback)) return word == "true";
  return std::string(word);
}

// "window: int >= 0 = 0", "to?: dtype", "axis: rows | all".
AttrSpec read_attr(std::string_view text) {
  const size_t colon = text.find(':');
  AttrSpec spec{.name = std::string(text.substr(0, colon))};
  const bool optional = spec.name.ends_with('?');
  if (optional) spec.name.pop_back();
  std::string_view rest = trim(text.substr(colon + 1));
  const size_t fallback = rest.find(" = ");
  spec.required = !optional && fallback == std::string_view::npos;
  spec.accepts = std::string(rest.substr(0, fallback));
  std::string_view words = spec.accepts;
  std::string_view type = next_word(words);
  if (type == "int" || type == "int32") {
    spec.fallback = int64_t{0};
    if (type == "int32") spec.min = INT32_MIN, spec.max = INT32_MAX;
  } else if (type == "float") {
    spec.fallback = 0.0;
  } else if (type == "bool") {
    spec.fallback = false;
  } else if (type == "ints") {
    spec.fallback = std::vector<int64_t>();
  } else {
    spec.fallback = std::string();
    if (type != "dtype" && type != "string") spec.words.emplace_back(type);
    for (int d = 0; type == "dtype" && d < kDTypes; ++d) spec.words.emplace_back(dtype_name(static_cast<DType>(d)));
    if (type == "dtype") spec.accepts = fmt::format("{}", fmt::join(spec.words, " | "));
  }
  while (!words.empty()) {
    const std::string_view sign = next_word(words), value = next_word(words);
    if (sign == "|") {
      spec.words.emplace_back(value);
      continue;
    }
    const bool above = sign.starts_with('>'), strict = sign.size() == 1;
    (above ? spec.min : spec.max) = to_double(value);
    (above ? spec.above_min : spec.below_max) = strict;
    spec.bounded = true;
  }
  if (fallback != std::string_view::npos) spec.fallback = default_of(spec, trim(rest.substr(fallback + 3)));
  return spec;
}

void read_signature(OpInfo& info) {
  const std::string_view text = info.signature;
  const size_t arrow = text.find("->");
  for (std::string_view operand : split_list(text.substr(0, arrow))) {
    std::string_view name = next_word(operand);
    const bool optional = name.ends_with('?'), any = name.ends_with("...");
    name.remove_suffix(optional ? 1 : any ? 3 : 0);
    info.operands.emplace_back(name);
    info.min_inputs += !optional;
    info.max_inputs = any ? -1 : info.max_inputs + 1;
  }
  info.results = text.ends_with("...") ? -1 : static_cast<int>(split_list(text.substr(arrow + 2)).size());
  for (std::string_view attr : split_list(info.attributes)) info.attrs.push_back(read_attr(attr));
}

bool within(const AttrSpec& spec, double value) {
  if (spec.bounded && !std::isfinite(value)) return false;
  return !(value < spec.min || value > spec.max || (spec.above_min && value == spec.min) ||
           (spec.below_max && value == spec.max));
}

bool accepts(const AttrSpec& spec, const Attr& value) {
  if (value.index() != spec.fallback.index()) return false;
  if (const auto* number = std::get_if<int64_t>(&value)) return within(spec, static_cast<double>(*number));
  if (const auto* number = std::get_if<double>(&value)) return within(spec, *number);
  const auto* word = std::get_if<std::string>(&value);
  return word == nullptr || spec.words.empty() || std::ranges::find(spec.words, *word) != spec.words.end();
}

std::vector<std::string> attr_names(Op op) {
  std::vector<std::string> names;
  for (const AttrSpec& spec : op_info(op).attrs) names.push_back(spec.name);
  return names;
}

constexpr const char* kTypeNames[] = {"an int", "a float", "a bool", "a string", "ints"};  // by Attr::index

bool key_less(const std::pair<std::string, Attr>& entry, std::string_view key) { return entry.first < key; }

}  // namespace

const std::vector<OpInfo>& all_ops() {
  static const std::vector<OpInfo> table = [] {
    std::vector<OpInfo> rows;
    const char* family = "";
#define OCTET_FAMILY(title) family = title;
#define OCTET_OP(suffix, name, stage, signature, attributes) \
  rows.push_back({Op::k##suffix, #name, Stage::k##stage, family, signature, attributes, {}, {}});
#include "ir/ops.def"
    for (OpInfo& row : rows) read_signature(row);
    return rows;
  }();
  return table;
}

const OpInfo& op_info(Op op) {
  const std::vector<OpInfo>& table = all_ops();
  auto position = static_cast<size_t>(op);
  check(position < table.size(), ErrorCode::kInternal, "op: no such enumerator {}", position);
  return table[position];
}

std::optional<Op> find_op(std::string_view name) {
  static const std::unordered_map<std::string_view, Op> index = [] {
    std::unordered_map<std::string_view, Op> map;
    for (const OpInfo& info : all_ops()) map.emplace(info.name, info.op);
    return map;
  }();
  auto found = index.find(name);
  if (found == index.end()) return {};
  return found->second;
}

const char* stage_name(Stage stage) {
  constexpr const char* kNames[] = {"model", "gradient", "precise", "sharded", "fused", "packed"};
  return kNames[static_cast<size_t>(stage)];
}

const AttrSpec* find_attr(Op op, std::string_view key) {
  for (const AttrSpec& spec : op_info(op).attrs) {  // at most a dozen
    if (spec.name == key) return &spec;
  }
  return nullptr;
}

const Attr& attr_or_default(Op op, const Attrs& attrs, std::string_view key) {
  if (const Attr* given = attrs.find(key)) return *given;
  const AttrSpec* spec = find_attr(op, key);
  check(spec != nullptr, ErrorCode::kInternal, "{} takes no attribute {}; it takes: {}", op_name(op), key,
        fmt::join(attr_names(op), ", "));
  check(!spec->required, ErrorCode::kInternal, "{}: attribute {} is missing", op_name(op), key);
  return spec->fallback;
}

void check_attrs(Op op, const Attrs& attrs, const std::string& node_name) {
  auto refuse = [&](const std::string& message) {
    fail(ErrorCode::kInvalidArgument, "{}: {} in node {}", op_name(op), message, node_name);
  };
  for (const auto& [key, value] : attrs.entries()) {
    const AttrSpec* spec = find_attr(op, key);
    if (spec == nullptr) {
      const std::vector<std::string> names = attr_names(op);
      refuse(fmt::format("no attribute is named {}{}; there are: {}", key, if_near(key, names, " (nearest: {})"),
                         names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
    }
    if (!accepts(*spec, value)) {
      const bool other_type = value.index() != spec->fallback.index();
      refuse(fmt::format("attribute {} is {}{} (want {})", key, print(value),
                         other_type ? fmt::format(", {}", kTypeNames[value.index()]) : "", spec->accepts));
    }
  }
  for (const AttrSpec& spec : op_info(op).attrs) {
    if (spec.required && !attrs.has(spec.name))
      refuse(fmt::format("attribute {} is missing (want {})", spec.name, spec.accepts));
  }
}

Attrs attrs_for(Op op, const Attrs& attrs) {
  Attrs taken;
  for (const auto& [key, value] : attrs.entries()) {
    if (find_attr(op, key) != nullptr) taken.set(key, value);
  }
  return taken;
}

int operand_index(Op op, std::string_view name) {
  const std::vector<std::string>& operands = op_info(op).operands;
  auto found = std::ranges::find(operands, name);
  check(found != operands.end(), ErrorCode::kInternal, "{} has no operand {}; it has: {}", op_name(op), name,
        fmt::join(operands, ", "));
  return static_cast<int>(found - operands.begin());
}

void throw_bad_attr(std::string_view key, bool present) {
  fail(ErrorCode::kInternal, "attribute {} {}", key, present ? "is of another type than asked for" : "is missing");
}

Attrs::Attrs(std::initializer_list<std::pair<std::string, Attr>> list) {
  entries_.reserve(list.size());
  for (const auto& [key, value] : list) set(key, value);
}

void Attrs::set(std::string_view key, Attr value) {
  auto at = std::lower_bound(entries_.begin(), entries_.end(), key, key_less);
  if (at != entries_.end() && at->first == key) {
    at->second = std::move(value);
  } else {
    entries_.emplace(at, std::string(key), std::move(value));
  }
}

void Attrs::erase(std::string_view key) {
  auto at = std::lower_bound(entries_.begin(), entries_.end(), key, key_less);
  if (at != entries_.end() && at->first == key) entries_.erase(at);
}

const Attr* Attrs::find(std::string_view key) const {
  for (const auto& entry : entries_) {  // a handful of entries: a scan beats a search
    if (entry.first == key) return &entry.second;
  }
  return nullptr;
}

}  // namespace octet
