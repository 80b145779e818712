// Values of the template language: Python's, as far as templates can tell. Strings know which of their bytes the
// template wrote and which came from its bindings. Values are small, copied freely and own nothing: what they point to
// lives in the Arena of the rendering (or, for constants, of the parsed template) and is freed with it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "chat/chat_template.h"

namespace octet::jinja {

// Memory handed out until the arena ends; nothing is freed before. Holds trivially destructible objects only.
class Arena {
 public:
  explicit Arena(int64_t limit) : limit_(static_cast<size_t>(limit)) {}
  virtual ~Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* take(size_t bytes);  // aligned to 8
  template <typename T>
  std::span<T> array(size_t count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 8);
    T* items = static_cast<T*>(take(count * sizeof(T)));  // NOLINT(bugprone-sizeof-expression): T may be a pointer
    std::uninitialized_value_construct_n(items, count);
    return {items, count};
  }
  template <typename T>
  T* make(T value) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 8);
    return new (take(sizeof(T))) T(std::move(value));
  }
  template <typename T>
  std::span<T> copy(const std::vector<T>& from) {
    const std::span<T> to = array<T>(from.size());
    std::copy(from.begin(), from.end(), to.begin());
    return to;
  }
  std::string_view copy(std::string_view from);

 protected:
  // More than the limit is wanted.
  [[noreturn]] virtual void full() const;

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0, used_ = 0, limit_;
};

enum class Kind : uint8_t { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kDict, kFunction, kLoop };

// Who wrote the bytes of a text; kMixed: its runs say.
enum class Origin : uint8_t { kTemplate, kInput, kMixed };
inline Origin both(Origin a, Origin b) {
  return a == Origin::kTemplate && b == Origin::kTemplate ? Origin::kTemplate : Origin::kInput;
}

struct Run {
  uint32_t end = 0;  // offset behind the run's last byte; it begins where the one before it ends
  Origin origin = Origin::kTemplate;
};
struct MixedText {
  const char* data = nullptr;
  std::span<const Run> runs;  // cover all bytes; neighbours differ
};

struct List;
struct Dict;
struct Function;
struct Loop;

struct Value {
  Kind kind = Kind::kUndefined;
  Origin origin = Origin::kTemplate;  // of a string; also of scalars, for what they are written as
  uint32_t size = 0;                  // bytes of a string or of an undefined value's name
  union {
    bool boolean;
    int64_t integer;
    double real;
    const char* chars;  // string that is not mixed; name of an undefined value
    const MixedText* mixed;
    List* list;
    Dict* dict;
    Function* function;
    Loop* loop;
  };
  Value() : integer(0) {}

  static Value none() { return tagged(Kind::kNone); }
  static Value of(bool value) {
    Value out = tagged(Kind::kBool);
    out.boolean = value;
    return out;
  }
  static Value of(int64_t value, Origin origin = Origin::kTemplate) {
    Value out = tagged(Kind::kInt, origin);
    out.integer = value;
    return out;
  }
  static Value of(double value, Origin origin = Origin::kTemplate) {
    Value out = tagged(Kind::kFloat, origin);
    out.real = value;
    return out;
  }
  // Bytes that outlive the value.
  static Value of(std::string_view text, Origin origin = Origin::kTemplate) {
    Value out = tagged(Kind::kString, origin);
    out.size = static_cast<uint32_t>(text.size());
    out.chars = text.data();
    return out;
  }
  static Value of(const char*) = delete;
  static Value undefined(std::string_view name) {
    Value out = of(name);
    out.kind = Kind::kUndefined;
    return out;
  }
  static Value of(List* value) {
    Value out = tagged(Kind::kList);
    out.list = value;
    return out;
  }
  static Value of(Dict* value) {
    Value out = tagged(Kind::kDict);
    out.dict = value;
    return out;
  }
  static Value of(Function* value) {
    Value out = tagged(Kind::kFunction);
    out.function = value;
    return out;
  }
  static Value of(Loop* value) {
    Value out = tagged(Kind::kLoop);
    out.loop = value;
    return out;
  }

  bool is(Kind which) const { return kind == which; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_integer() const { return kind == Kind::kInt || kind == Kind::kBool; }  // Python's bool is an int
  bool is_number() const { return is_integer() || kind == Kind::kFloat; }
  // Of a string, or the name of an undefined value.
  std::string_view text() const { return {origin == Origin::kMixed ? mixed->data : chars, size}; }
  int64_t as_integer() const { return kind == Kind::kBool ? static_cast<int64_t>(boolean) : integer; }
  double as_real() const { return kind == Kind::kFloat ? real : static_cast<double>(as_integer()); }

 private:
  static Value tagged(Kind kind, Origin origin = Origin::kTemplate) {
    Value out;
    out.kind = kind;
    out.origin = origin;
    return out;
  }
};
static_assert(sizeof(Value) == 16 && std::is_trivially_copyable_v<Value>);

// Lists and what behaves like one. They do not change, so slices share items; a generator is empty once it was read.
struct List {
  enum class Type : uint8_t { kList, kTuple, kRange, kView, kGenerator };
  std::span<const Value> items;
  Type type = Type::kList;
  Origin origin = Origin::kTemplate;  // of its brackets and commas where it is written
  std::string_view shown = {};        // what a range or generator is written as, a view's name
  bool indexed() const { return type <= Type::kRange; }
};

struct Entry {
  Value key, value;
};
// Keys in their order. Only a namespace changes once it is made.
struct Dict {
  std::span<Entry> entries;
  std::span<uint32_t> index;  // hash table of places + 1 in `entries`; empty while there are few
  Origin origin = Origin::kTemplate;
  bool is_namespace = false;
};

struct Keyword {
  std::string_view name;
  Value value;
};
// Arguments of a call; `self`: what a filter, test or method is applied to.
struct Call {
  Value self;
  std::span<const Value> args;
  std::span<const Keyword> keywords = {};
};

class Runtime;
using BuiltinBody = Value (*)(Runtime&, const Call&);
// A filter, test, method or global function. `parameters`: names separated by blanks: the body gets that many
// arguments in that order, and absent() for those not given; nullptr: arguments as they are.
struct Builtin {
  constexpr Builtin(std::string_view of, BuiltinBody with, const char* takes = "")
      : name(of), body(with), parameters(takes) {
    for (const char* at = takes; at != nullptr && *at != 0; ++at) count += at == takes || *at == ' ' ? 1 : 0;
  }
  std::string_view name;
  BuiltinBody body;
  const char* parameters;
  size_t count = 0;  // of parameters
};
inline constexpr size_t kMaxParameters = 6;

struct MacroStmt;
struct Macro;  // of jinja_ast.h, as Stmt
struct Stmt;
struct Scope;
struct Function {
  const Builtin* builtin = nullptr;  // with `self`; else `macro`, made in `scope`
  Value self;
  const Macro* macro = nullptr;
  Scope* scope = nullptr;
};

struct Loop {
  std::span<const Value> items;
  int64_t at = 0;
  int64_t depth = 1;
  Value last_changed = {};          // arguments of loop.changed()
  const Stmt* recursive = nullptr;  // the statement that loop(items) renders again, in `scope`
  Scope* scope = nullptr;
};

// What an argument that was not given is.
inline Value absent() { return Value::undefined({}); }
inline bool is_absent(const Value& value) { return value.is_undefined() && value.size == 0; }

}  // namespace octet::jinja
