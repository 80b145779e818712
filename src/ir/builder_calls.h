// The methods of Builder as data: names, parameters with defaults, results and what they do, in one table. Python's
// octet.Builder is made of it, and docs/builder.md prints it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/builder.h"

namespace octet {

// One argument; none: absent.
using Argument = std::variant<std::monostate, bool, int64_t, double, std::string, Value, std::vector<Value>, Shape,
                              TensorType, Attrs>;

enum class ArgumentKind : uint8_t { kValue, kValues, kBool, kInt, kFloat, kString, kShape, kType, kAttrs };

struct BuilderParameter {
  std::string name;
  ArgumentKind kind = ArgumentKind::kValue;
  std::optional<Argument> fallback = {};  // none: it must be given
  std::vector<std::string> words = {};    // of a string: what it may be; empty: anything
};

class BuilderArguments;

struct BuilderMethod {
  const char* name;
  const char* signature;  // parameters as written in the table: "x, name: str, out: int, bias: bool = false"
  const char* results;    // "y", "y, mean, rstd", "" or "..." of emit
  const char* meaning;
  std::vector<Value> (*run)(Builder&, const BuilderArguments&);
  std::vector<BuilderParameter> parameters = {};
  std::vector<std::string> result_names = {};
};
const std::vector<BuilderMethod>& builder_methods();
// Throws kInvalidArgument with the nearest name.
const BuilderMethod& builder_method(std::string_view name);

// The place of the parameter of this name; as many as there are: there is none.
size_t parameter_index(const BuilderMethod& method, std::string_view name);

// Checks number and kinds of the arguments, puts defaults where they are absent at the end or none, and runs the
// method. Throws kInvalidArgument naming method, parameter and value; nothing is undefined, whatever they are, but for
// values of other graphs.
std::vector<Value> call(Builder& builder, const BuilderMethod& method, std::span<const Argument> arguments);

// The parameter that such a call names, or "": a second call with the same is nearly always a mistake.
std::string named_param(const Builder& builder, const BuilderMethod& method, std::span<const Argument> arguments);

}  // namespace octet
