// What each op takes: stage, operands, results and attributes, from its row in ops.def. The attributes of a node are
// checked against it when a graph gets the node and by the verifier, and read through it (Node::attr), so that a
// default is written once.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace octet {

// Attributes of a node: a small ordered map. Which ones an op takes, of what type and range, is in its signature.

using Attr = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>>;

[[noreturn]] void throw_bad_attr(std::string_view key, bool present);

// Node::attr reads an attribute with its default. get throws kInternal naming the key when it is missing or of another
// type; get_or is for a fallback that is computed.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, Attr>> list);
  void set(std::string_view key, Attr value);
  void erase(std::string_view key);
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const Attr* find(std::string_view key) const;
  template <typename T>
  const T& get(std::string_view key) const;
  template <typename T>
  T get_or(std::string_view key, T fallback) const;
  const std::vector<std::pair<std::string, Attr>>& entries() const { return entries_; }
  bool operator==(const Attrs&) const = default;

 private:
  std::vector<std::pair<std::string, Attr>> entries_;  // sorted by key
};

template <typename T>
const T& Attrs::get(std::string_view key) const {
  const Attr* attr = find(key);
  if (attr == nullptr || !std::holds_alternative<T>(*attr)) {
    throw_bad_attr(key, attr != nullptr);
  }
  return std::get<T>(*attr);
}
template <typename T>
T Attrs::get_or(std::string_view key, T fallback) const {
  const Attr* attr = find(key);
  return attr != nullptr && std::holds_alternative<T>(*attr) ? std::get<T>(*attr) : std::move(fallback);
}

enum class Op : uint8_t {
#define OCTET_OP(suffix, ...) k##suffix,
#include "ir/ops.def"
};

// How far a graph has come; each stage has a legality table (verify.h).
enum class Stage : uint8_t { kModel, kGradient, kPrecise, kSharded, kFused, kPacked };
const char* stage_name(Stage stage);

struct AttrSpec {
  std::string name;
  std::string accepts;   // for messages, as the row has it: "int >= 0"
  Attr fallback;         // its default, else 0, "" or [] of its type
  bool required = true;  // has no default and may not be absent
  bool bounded = false;  // and then finite
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool above_min = false, below_max = false;  // the bound itself is refused
  std::vector<std::string> words = {};        // of a string: what it may be; empty: anything
};

struct OpInfo {
  Op op;
  const char* name;
  Stage stage;  // the first that may hold it
  const char* family;
  const char* signature;   // operands and results, as written in ops.def
  const char* attributes;  // the same
  std::vector<std::string> operands;
  std::vector<AttrSpec> attrs;
  int min_inputs = 0, max_inputs = 0, results = 0;  // -1: any number
};
const std::vector<OpInfo>& all_ops();
const OpInfo& op_info(Op op);
std::optional<Op> find_op(std::string_view name);
inline const char* op_name(Op op) { return op_info(op).name; }

const AttrSpec* find_attr(Op op, std::string_view key);
// The attribute, else its default. Throws kInternal when the op takes none of this name or needs it.
const Attr& attr_or_default(Op op, const Attrs& attrs, std::string_view key);
// Throws kInvalidArgument naming op, attribute, value, what is accepted, and the node.
void check_attrs(Op op, const Attrs& attrs, const std::string& node_name);
// Those of the attributes that the op takes.
Attrs attrs_for(Op op, const Attrs& attrs);

int operand_index(Op op, std::string_view name);  // throws kInternal when the op has no such operand

}  // namespace octet
