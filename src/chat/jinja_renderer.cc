// Statements, names and calls; expressions are jinja_evaluate.cc's.
#include "chat/jinja_renderer.h"

#include <array>

namespace octet::jinja {
namespace {

// A scope inside of `parent` while it exists.
class Scoped {
 public:
  Scoped(Runtime& runtime, Scope*& current, Scope* parent) : current_(current), before_(current) {
    current = runtime.make<Scope>({.parent = parent});
  }
  ~Scoped() { current_ = before_; }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;

 private:
  Scope*& current_;
  Scope* const before_;
};

}  // namespace

void Renderer::render(TextBuilder& out) {
  for (size_t i = 0; i < globals_.size(); ++i) {
    if (!is_absent(globals_[i])) continue;
    const Name& name = template_.names[i];
    globals_[i] =
        name.global != nullptr ? Value::of(make<Function>({.builtin = name.global})) : Value::undefined(name.text);
  }
  whole_ = out_ = &out;
  run(template_.body);
}

const Value& Renderer::lookup(int32_t name) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const Scope::Item& item : scope->items.first(scope->count)) {
      if (item.name == name) return item.value;
    }
  }
  return globals_[static_cast<size_t>(name)];
}

void Renderer::assign(int32_t name, const Value& value) {
  if (scope_ == nullptr) return bind(name, value);
  Scope& scope = *scope_;
  for (Scope::Item& item : scope.items.first(scope.count)) {
    if (item.name == name) return void(item.value = value);
  }
  if (scope.count == scope.items.size()) {
    const std::span<Scope::Item> more = array<Scope::Item>(std::max<size_t>(8, 2 * scope.count));
    std::copy(scope.items.begin(), scope.items.end(), more.begin());
    scope.items = more;
  }
  scope.items[scope.count++] = {name, value};
}

void Renderer::assign(const Target& target, const Value& value) {
  if (!target.attribute.empty()) {
    const Value& space = lookup(target.name);
    check(space.is(Kind::kDict) && space.dict->is_namespace, "{}.{} cannot be set: it is not a namespace",
          template_.names[static_cast<size_t>(target.name)].text, target.attribute);
    return set_attribute(*this, *space.dict, target.attribute, value);
  }
  if (target.name >= 0) return assign(target.name, value);
  const auto items = iterate(*this, value);
  check(items.size() == target.items.size(), "{} values for {} names", items.size(), target.items.size());
  for (size_t i = 0; i < items.size(); ++i) assign(*target.items[i], items[i]);
}

Value Renderer::capture(Stmts stmts) {
  TextBuilder text(*this);
  TextBuilder* const before = std::exchange(out_, &text);
  run(stmts);
  out_ = before;
  return text.finish();
}

Renderer::Flow Renderer::run(Stmts stmts) {
  const Nested nested(*this);
  for (const Stmt* stmt : stmts) {
    const Flow flow = run(*stmt);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Renderer::Flow Renderer::run(const Stmt& stmt) {
  charge();
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText: out_->append(stmt.value.text(), Origin::kTemplate); break;
    case StmtKind::kOutput: output(*stmt.expr); break;
    case StmtKind::kIf:
      for (const Branch& branch : stmt.branches) {
        if (truthy(evaluate(*branch.test))) return run(branch.body);
      }
      return run(stmt.body);
    case StmtKind::kFor: return run_for(stmt, evaluate(*stmt.expr), 1);
    case StmtKind::kSet: assign(*stmt.target, evaluate(*stmt.expr)); break;
    case StmtKind::kSetBlock: {
      Value text;
      {
        const Scoped scoped(*this, scope_, scope_);
        text = capture(stmt.body);
      }
      assign(*stmt.target, stmt.expr == nullptr ? text : evaluate_filter(*stmt.expr, &text));
      break;
    }
    case StmtKind::kMacro: assign(*stmt.target, make_function(*stmt.macro)); break;
    case StmtKind::kCallBlock: {
      const Value caller = make_function(*stmt.macro);
      write(*out_, evaluate_call(*stmt.expr, &caller));
      break;
    }
    case StmtKind::kFilterBlock: {
      const Scoped scoped(*this, scope_, scope_);
      const Value text = capture(stmt.body);
      write(*out_, evaluate_filter(*stmt.expr, &text));
      break;
    }
    case StmtKind::kWith: {
      std::vector<Value> values;  // all of them are made outside of the new scope
      for (const Assignment& assignment : stmt.assignments) values.push_back(evaluate(*assignment.value));
      const Scoped scoped(*this, scope_, scope_);
      for (size_t i = 0; i < values.size(); ++i) assign(*stmt.assignments[i].target, values[i]);
      return run(stmt.body);
    }
    case StmtKind::kScope: {
      const Scoped scoped(*this, scope_, scope_);
      return run(stmt.body);
    }
    case StmtKind::kGeneration: return run_generation(stmt);
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Renderer::Flow Renderer::run_generation(const Stmt& stmt) {
  const Scoped scoped(*this, scope_, scope_);
  const size_t begin = out_->text().size();
  const Flow flow = run(stmt.body);
  if (out_ != whole_) {
    answers_elsewhere_ = true;
  } else if (out_->text().size() > begin) {
    answers_.push_back({begin, out_->text().size()});
  }
  return flow;
}

Renderer::Flow Renderer::run_for(const Stmt& stmt, const Value& over, int64_t depth) {
  const Nested nested(*this);
  std::span<const Value> items = iterate(*this, over);
  Loop* const loop = make<Loop>({.depth = depth, .recursive = stmt.recursive ? &stmt : nullptr, .scope = scope_});
  {
    const Scoped scoped(*this, scope_, scope_);
    if (stmt.test != nullptr) {
      std::vector<Value> kept;
      for (const Value& item : items) {
        scope_->count = 0;
        assign(*stmt.target, item);
        if (truthy(evaluate(*stmt.test))) kept.push_back(item);
      }
      items = copy(kept);
    }
    loop->items = items;
    for (size_t i = 0; i < items.size(); ++i) {
      charge();
      scope_->count = 0;
      loop->at = static_cast<int64_t>(i);
      assign(template_.loop, Value::of(loop));
      assign(*stmt.target, items[i]);
      if (run(stmt.body) == Flow::kBreak) break;
    }
  }
  if (!items.empty() || stmt.otherwise.empty()) return Flow::kNext;
  const Scoped scoped(*this, scope_, scope_);
  return run(stmt.otherwise);
}

Value Renderer::make_function(const Macro& macro) {
  return Value::of(make<Function>({.macro = &macro, .scope = scope_}));
}

Value Renderer::call(const Value& callee, const Call& call) {
  const Nested nested(*this);
  charge();
  check(!callee.is_undefined(), "'{}' is undefined", callee.text());
  if (callee.is(Kind::kLoop) && callee.loop->recursive != nullptr && call.args.size() == 1) {
    TextBuilder text(*this);
    TextBuilder* const before = std::exchange(out_, &text);
    Scope* const scope = std::exchange(scope_, callee.loop->scope);
    run_for(*callee.loop->recursive, call.args[0], callee.loop->depth + 1);
    scope_ = scope, out_ = before;
    return text.finish();
  }
  check(callee.is(Kind::kFunction), "a {} cannot be called", type_name(callee));
  const Function& function = *callee.function;
  if (function.macro != nullptr) return call_macro(function, call);
  return invoke(*function.builtin, {function.self, call.args, call.keywords});
}

Value Renderer::invoke(const Builtin& builtin, const Call& call) {
  charge();
  if (builtin.parameters == nullptr) return builtin.body(*this, call);
  if (call.keywords.empty() && call.args.size() == builtin.count) return builtin.body(*this, call);
  check(call.args.size() <= builtin.count, "{}() takes at most {} arguments, got {}", builtin.name, builtin.count,
        call.args.size());
  std::array<Value, kMaxParameters> values;
  std::copy(call.args.begin(), call.args.end(), values.begin());
  for (const Keyword& keyword : call.keywords) {
    std::string_view rest = builtin.parameters;
    size_t place = 0;
    for (; place < builtin.count && rest.substr(0, rest.find(' ')) != keyword.name; ++place)
      rest.remove_prefix(std::min(rest.find(' '), rest.size() - 1) + 1);
    check(place < builtin.count && place >= call.args.size(), "{}() has no argument \"{}\" (there are: {})",
          builtin.name, keyword.name, builtin.parameters);
    values[place] = keyword.value;
  }
  return builtin.body(*this, {call.self, std::span<const Value>(values).first(builtin.count)});
}

Value Renderer::call_macro(const Function& function, const Call& call) {
  const Macro& macro = *function.macro;
  const uint32_t line = line_;
  const Scoped scoped(*this, scope_, function.scope);
  const auto parameters = macro.parameters;
  std::vector<Entry> unknown;
  assign(template_.caller, Value::undefined("caller"));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int32_t number = parameters[i].target->name;
    const std::string_view name = template_.names[static_cast<size_t>(number)].text;
    const auto keyword = std::find_if(call.keywords.begin(), call.keywords.end(),
                                      [&](const Keyword& given) { return given.name == name; });
    if (i < call.args.size()) {
      assign(number, call.args[i]);
    } else if (keyword != call.keywords.end()) {
      assign(number, keyword->value);
    } else {
      assign(number, parameters[i].value != nullptr ? evaluate(*parameters[i].value) : Value::undefined(name));
    }
  }
  for (const Keyword& keyword : call.keywords) {
    const bool known = std::any_of(parameters.begin(), parameters.end(), [&](const Assignment& parameter) {
      return template_.names[static_cast<size_t>(parameter.target->name)].text == keyword.name;
    });
    if (known) continue;
    if (keyword.name == "caller") {
      assign(template_.caller, keyword.value);
    } else {
      check(macro.uses_kwargs, "macro {}() takes no argument \"{}\"", macro.name, keyword.name);
      unknown.push_back({Value::of(keyword.name), keyword.value});
    }
  }
  const size_t positional = std::min(call.args.size(), parameters.size());
  check(macro.uses_varargs || call.args.size() <= parameters.size(), "macro {}() takes at most {} arguments, got {}",
        macro.name, parameters.size(), call.args.size());
  if (macro.uses_varargs)
    assign(template_.varargs, make_list(*this, call.args.subspan(positional), List::Type::kTuple));
  if (macro.uses_kwargs) assign(template_.kwargs, make_dict(*this, unknown));
  const Value text = capture(macro.body);
  line_ = line;
  return text;
}

}  // namespace octet::jinja
