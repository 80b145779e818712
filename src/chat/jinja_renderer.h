// Walks a parsed template. Names are looked up as Jinja2 does: loops, macros, blocks with a body have a scope of their
// own, a macro sees the scopes it was written in.
#pragma once

#include "chat/jinja_ast.h"

namespace octet::jinja {

// Names set inside a loop, macro or block; those of the whole template are Renderer::globals_.
struct Scope {
  struct Item {
    int32_t name = -1;
    Value value;
  };
  Scope* parent = nullptr;
  std::span<Item> items;
  size_t count = 0;  // items in use
};

class Renderer final : public Runtime {
 public:
  Renderer(const Template& parsed, const std::string& where, const RenderLimits& limits, double now)
      : Runtime(where, limits, now), template_(parsed), globals_(parsed.names.size()), out_(nullptr) {}

  // A value for a name of the template.
  void bind(int32_t name, const Value& value) { globals_[static_cast<size_t>(name)] = value; }
  // Values of names that were not bound are global functions or undefined.
  void render(TextBuilder& out);
  // Bytes of the output that {% generation %} blocks wrote, in order.
  const std::vector<TextRange>& answers() const { return answers_; }
  // Such a block stood in a macro, set, call or filter block, whose text has no place yet.
  bool answers_elsewhere() const { return answers_elsewhere_; }

  Value call(const Value& callee, const Call& call) override;
  Value invoke(const Builtin& builtin, const Call& call) override;

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  Flow run(Stmts stmts);
  Flow run(const Stmt& stmt);
  Flow run_generation(const Stmt& stmt);
  Flow run_for(const Stmt& stmt, const Value& over, int64_t depth);
  void output(const Expr& expr);
  void assign(const Target& target, const Value& value);
  void assign(int32_t name, const Value& value);
  Value capture(Stmts stmts);
  const Value& lookup(int32_t name) const;
  Value make_function(const Macro& macro);

  Value evaluate(const Expr& expr);      // an error if it is undefined and the template strict
  Value evaluate_any(const Expr& expr);  // also undefined
  Value evaluate_nested(const Expr& expr);
  std::span<const Value> evaluate_all(Exprs exprs);
  std::span<const Keyword> evaluate_all(std::span<const Argument> keywords);
  Value evaluate_filter(const Expr& expr, const Value* subject);
  Value evaluate_call(const Expr& expr, const Value* caller);
  bool compares(const Expr& expr);
  Value member(const Value& object, const Expr& expr);
  const Builtin* method_of(const Value& object, const Name& name) const;
  Value loop_member(const Loop& loop, LoopField field);

  Value call_macro(const Function& function, const Call& call);

  const Template& template_;
  std::vector<Value> globals_;  // by Name number
  Scope* scope_ = nullptr;
  TextBuilder* out_;
  const TextBuilder* whole_ = nullptr;  // the output
  std::vector<TextRange> answers_;
  bool answers_elsewhere_ = false;
};

}  // namespace octet::jinja
