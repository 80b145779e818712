// A parsed template. Nodes live in the arena of their Template and do not change: many threads render one at once.
#pragma once

#include <deque>
#include <set>
#include <string>
#include <unordered_map>

#include "chat/jinja_operations.h"

namespace octet::jinja {

enum class ExprKind : uint8_t {
  kConstant,     // value
  kName,         // name
  kList,         // parts
  kTuple,        // parts
  kDict,         // parts: key, value, key, value ...
  kMember,       // parts[0].name; value: the name as a string
  kItem,         // parts[0][parts[1]]
  kSlice,        // parts[0][parts[1]:parts[2]:parts[3]], absent ones null
  kCall,         // parts[0](parts[1], ..., keywords)
  kFilter,       // parts[0] | builtin(parts[1], ..., keywords); parts[0] is null in a block's filter
  kTest,         // parts[0] is builtin(parts[1], ..., keywords)
  kNot,          // not parts[0]
  kNegate,       // -parts[0]
  kPlus,         // +parts[0]
  kArithmetic,   // parts[0] op parts[1]
  kSum,          // parts[0] + parts[1] + ...
  kConcat,       // parts[0] ~ parts[1] ~ ...
  kAnd,          // parts[0] and parts[1] and ...
  kOr,           // parts[0] or parts[1] or ...
  kCompare,      // parts[0] comparisons[0] parts[1] comparisons[1] ...
  kConditional,  // parts[0] if parts[1] else parts[2], which may be null
};
enum class Comparison : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Expr;
using Exprs = std::span<const Expr* const>;
struct Argument {
  std::string_view name;
  const Expr* value = nullptr;
};
struct Expr {
  ExprKind kind = ExprKind::kConstant;
  Operator op = Operator::kAdd;
  uint32_t line = 0;
  int32_t name = -1;  // in Template::names
  Value value = {};   // of kFilter and kTest: the builtin's name
  Exprs parts = {};
  std::span<const Argument> keywords = {};
  std::span<const Comparison> comparisons = {};
  const Builtin* builtin = nullptr;  // null: unknown, an error when it is reached
};

enum class StmtKind : uint8_t {
  kText,         // value
  kOutput,       // expr
  kIf,           // branches; body: else
  kFor,          // target in expr, if test: body; otherwise: nothing was looped over
  kSet,          // target = expr
  kSetBlock,     // target = body, through the filter expr if there is one
  kMacro,        // macro
  kCallBlock,    // expr is the call, macro what caller() is
  kFilterBlock,  // body through the filter expr
  kWith,         // assignments, then body
  kScope,        // body
  kGeneration,   // body, which is an answer
  kBreak,
  kContinue,
};

struct Stmt;
using Stmts = std::span<const Stmt* const>;
struct Target {
  int32_t name = -1;
  std::string_view attribute = {};            // name.attribute of a namespace
  std::span<const Target* const> items = {};  // a tuple of targets
};
struct Branch {
  const Expr* test = nullptr;
  Stmts body;
};
struct Assignment {  // also a macro's parameter: no value is no default
  const Target* target = nullptr;
  const Expr* value = nullptr;
};
struct Macro {
  std::string_view name;
  std::span<const Assignment> parameters;
  Stmts body = {};
  bool uses_varargs = false, uses_kwargs = false;
};
struct Stmt {
  StmtKind kind = StmtKind::kText;
  bool recursive = false;
  uint32_t line = 0;
  Value value = {};
  const Target* target = nullptr;
  const Expr* expr = nullptr;
  const Expr* test = nullptr;
  Stmts body = {}, otherwise = {};
  std::span<const Branch> branches = {};
  std::span<const Assignment> assignments = {};
  const Macro* macro = nullptr;
};

enum class LoopField : uint8_t {
  kNone,
  kIndex,
  kIndex0,
  kRevindex,
  kRevindex0,
  kFirst,
  kLast,
  kLength,
  kPrevitem,
  kNextitem,
  kDepth,
  kDepth0
};
// A variable or member; by its number, so that rendering compares no text.
struct Name {
  std::string_view text;
  const Builtin* string_method = nullptr;
  const Builtin* list_method = nullptr;
  const Builtin* dict_method = nullptr;
  const Builtin* loop_method = nullptr;
  const Builtin* global = nullptr;  // range, namespace ...
  LoopField loop_field = LoopField::kNone;
};

struct Template {
  explicit Template(std::string_view from, int64_t memory) : arena(memory), source(from) {}
  Arena arena;
  std::string source;  // literals and names are views into it
  bool strict_undefined = false;
  std::vector<Name> names;
  std::unordered_map<std::string_view, int32_t> numbers;  // of names
  Stmts body;
  int32_t loop = -1, caller = -1, varargs = -1, kwargs = -1;  // names
  bool marks_answers = false;                                 // there is a {% generation %} block
};

// Fills in names and body. Throws kInvalidArgument with `where`, line and what is wrong.
void parse(Template& into, const std::string& where, const TemplateOptions& options);
// Names that are read where the template has not certainly set them before; no globals.
std::set<std::string> undeclared_names(const Template& parsed);
MessageForm message_form_of(const Template& parsed);

// By their names; null where there is none.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_string_method(std::string_view name);
const Builtin* find_list_method(std::string_view name);
const Builtin* find_dict_method(std::string_view name);
const Builtin* find_loop_method(std::string_view name);
const Builtin* find_global(std::string_view name);

}  // namespace octet::jinja
