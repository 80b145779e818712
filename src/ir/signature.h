// What each op takes: stage, operands, results and attributes, from its row in ops.def. The attributes of a node are
// checked against it when a graph gets the node and by the verifier, and read through it (Node::attr), so that a
// default is written once.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/attrs.h"

namespace octet {

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
