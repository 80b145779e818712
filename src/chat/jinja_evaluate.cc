// Expressions.
#include <array>

#include "chat/jinja_renderer.h"

namespace octet::jinja {

std::span<const Value> Renderer::evaluate_all(Exprs exprs) {
  const std::span<Value> values = array<Value>(exprs.size());
  for (size_t i = 0; i < exprs.size(); ++i) values[i] = evaluate(*exprs[i]);
  return values;
}

std::span<const Keyword> Renderer::evaluate_all(std::span<const Argument> keywords) {
  if (keywords.empty()) return {};
  const std::span<Keyword> values = array<Keyword>(keywords.size());
  for (size_t i = 0; i < keywords.size(); ++i) values[i] = {keywords[i].name, evaluate(*keywords[i].value)};
  return values;
}

// What is written at once needs no text in between.
void Renderer::output(const Expr& expr) {
  if (expr.kind == ExprKind::kConcat) {
    for (const Expr* part : expr.parts) write(*out_, evaluate(*part));
    return;
  }
  if (expr.kind != ExprKind::kSum) return write(*out_, evaluate(expr));
  const auto values = evaluate_all(expr.parts);
  if (std::all_of(values.begin(), values.end(), [](const Value& value) { return value.is_string(); })) {
    for (const Value& value : values) out_->append(value);
    return;
  }
  Value sum = values[0];
  for (const Value& value : values.subspan(1)) sum = arithmetic(*this, Operator::kAdd, sum, value);
  write(*out_, sum);
}

Value Renderer::evaluate(const Expr& expr) {
  const Value value = evaluate_any(expr);
  check(!template_.strict_undefined || !value.is_undefined(), "'{}' is undefined", value.text());
  return value;
}

Value Renderer::evaluate_any(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConstant: return expr.value;
    case ExprKind::kName: return lookup(expr.name);
    default: return evaluate_nested(expr);
  }
}

Value Renderer::evaluate_nested(const Expr& expr) {
  const Nested nested(*this);
  charge();
  const Exprs parts = expr.parts;
  switch (expr.kind) {
    case ExprKind::kConstant:
    case ExprKind::kName: break;
    case ExprKind::kList: return make_list(*this, evaluate_all(parts));
    case ExprKind::kTuple: return make_list(*this, evaluate_all(parts), List::Type::kTuple);
    case ExprKind::kDict: {
      const std::span<Entry> entries = array<Entry>(parts.size() / 2);
      for (size_t i = 0; i < entries.size(); ++i) entries[i] = {evaluate(*parts[2 * i]), evaluate(*parts[2 * i + 1])};
      return make_dict(*this, entries);
    }
    case ExprKind::kMember: return member(evaluate(*parts[0]), expr);
    case ExprKind::kItem: {
      const Value object = evaluate(*parts[0]), key = evaluate(*parts[1]);
      const Value item = get_item(*this, object, key);
      return is_absent(item) ? Value::undefined(key.is_string() && key.size > 0 ? key.text() : "item") : item;
    }
    case ExprKind::kSlice: {
      const Value object = evaluate(*parts[0]);
      std::array<Value, 3> bounds;
      for (size_t i = 0; i < 3; ++i) bounds[i] = parts[i + 1] != nullptr ? evaluate(*parts[i + 1]) : Value::none();
      return get_slice(*this, object, bounds[0], bounds[1], bounds[2]);
    }
    case ExprKind::kCall: return evaluate_call(expr, nullptr);
    case ExprKind::kFilter: return evaluate_filter(expr, nullptr);
    case ExprKind::kTest: {
      const Value subject = evaluate_any(*parts[0]);
      check(expr.builtin != nullptr, "unknown test \"{}\"", expr.value.text());
      return invoke(*expr.builtin, {subject, evaluate_all(parts.subspan(1)), evaluate_all(expr.keywords)});
    }
    case ExprKind::kNot: return Value::of(!truthy(evaluate(*parts[0])));
    case ExprKind::kNegate: return negated(*this, evaluate(*parts[0]));
    case ExprKind::kPlus: {
      const Value value = evaluate(*parts[0]);
      check(value.is_number(), "a {} has no sign", type_name(value));
      return value.is(Kind::kBool) ? Value::of(value.as_integer()) : value;
    }
    case ExprKind::kArithmetic: {
      const Value left = evaluate(*parts[0]);
      return arithmetic(*this, expr.op, left, evaluate(*parts[1]));
    }
    case ExprKind::kSum: {
      const auto values = evaluate_all(parts);
      if (std::all_of(values.begin(), values.end(), [](const Value& value) { return value.is_string(); }))
        return join_texts(*this, values);
      Value sum = values[0];
      for (const Value& value : values.subspan(1)) sum = arithmetic(*this, Operator::kAdd, sum, value);
      return sum;
    }
    case ExprKind::kConcat: {
      const std::span<Value> texts = array<Value>(parts.size());
      for (size_t i = 0; i < parts.size(); ++i) texts[i] = to_string(*this, evaluate(*parts[i]));
      return join_texts(*this, texts);
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value value = evaluate(*parts[0]);
      for (size_t i = 1; i < parts.size() && truthy(value) == (expr.kind == ExprKind::kAnd); ++i)
        value = evaluate(*parts[i]);
      return value;
    }
    case ExprKind::kCompare: return Value::of(compares(expr));
    case ExprKind::kConditional:
      if (truthy(evaluate(*parts[1]))) return evaluate(*parts[0]);
      return parts[2] != nullptr ? evaluate(*parts[2]) : Value::undefined("the value of an if without else");
  }
  return expr.value;
}

bool Renderer::compares(const Expr& expr) {
  Value left = evaluate(*expr.parts[0]);
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    const Value right = evaluate(*expr.parts[i + 1]);
    bool holds = false;
    switch (expr.comparisons[i]) {
      case Comparison::kEqual: holds = equal(*this, left, right); break;
      case Comparison::kNotEqual: holds = !equal(*this, left, right); break;
      case Comparison::kLess: holds = compare(*this, left, right) < 0; break;
      case Comparison::kLessEqual: holds = compare(*this, left, right) <= 0; break;
      case Comparison::kGreater: holds = compare(*this, left, right) > 0; break;
      case Comparison::kGreaterEqual: holds = compare(*this, left, right) >= 0; break;
      case Comparison::kIn: holds = contains(*this, right, left); break;
      case Comparison::kNotIn: holds = !contains(*this, right, left); break;
    }
    if (!holds) return false;
    left = right;
  }
  return true;
}

const Builtin* Renderer::method_of(const Value& object, const Name& name) const {
  switch (object.kind) {
    case Kind::kString: return name.string_method;
    case Kind::kList: return object.list->indexed() ? name.list_method : nullptr;
    case Kind::kDict: return object.dict->is_namespace ? nullptr : name.dict_method;
    case Kind::kLoop: return name.loop_method;
    default: return nullptr;
  }
}

Value Renderer::member(const Value& object, const Expr& expr) {
  const Name& name = template_.names[static_cast<size_t>(expr.name)];
  if (const Builtin* method = method_of(object, name))
    return Value::of(make<Function>({.builtin = method, .self = object}));
  if (object.is(Kind::kLoop)) return loop_member(*object.loop, name.loop_field);
  const Value found = get_member(*this, object, expr.value);
  return is_absent(found) ? Value::undefined(name.text) : found;
}

Value Renderer::loop_member(const Loop& loop, LoopField field) {
  const int64_t length = std::ssize(loop.items), at = loop.at;
  switch (field) {
    case LoopField::kIndex: return Value::of(at + 1);
    case LoopField::kIndex0: return Value::of(at);
    case LoopField::kRevindex: return Value::of(length - at);
    case LoopField::kRevindex0: return Value::of(length - at - 1);
    case LoopField::kFirst: return Value::of(at == 0);
    case LoopField::kLast: return Value::of(at + 1 == length);
    case LoopField::kLength: return Value::of(length);
    case LoopField::kPrevitem: return at > 0 ? loop.items[static_cast<size_t>(at - 1)] : Value::undefined("previtem");
    case LoopField::kNextitem:
      return at + 1 < length ? loop.items[static_cast<size_t>(at + 1)] : Value::undefined("nextitem");
    case LoopField::kDepth: return Value::of(loop.depth);
    case LoopField::kDepth0: return Value::of(loop.depth - 1);
    case LoopField::kNone: break;
  }
  return Value::undefined("member of loop");
}

Value Renderer::evaluate_filter(const Expr& expr, const Value* subject) {
  check(expr.builtin != nullptr, "unknown filter \"{}\"", expr.value.text());
  // A chain of filters of a block ends in one without a subject.
  const Expr* first = expr.parts[0];
  const bool has_default = expr.builtin->name == "default" || expr.builtin->name == "d";
  const Value self = first == nullptr     ? *subject
                     : subject != nullptr ? evaluate_filter(*first, subject)
                     : has_default        ? evaluate_any(*first)
                                          : evaluate(*first);
  return invoke(*expr.builtin, {self, evaluate_all(expr.parts.subspan(1)), evaluate_all(expr.keywords)});
}

Value Renderer::evaluate_call(const Expr& expr, const Value* caller) {
  const Expr& callee = *expr.parts[0];
  Value object, function;
  const Builtin* method = nullptr;
  if (callee.kind == ExprKind::kMember) {
    object = evaluate(*callee.parts[0]);
    method = method_of(object, template_.names[static_cast<size_t>(callee.name)]);
    if (method == nullptr) function = member(object, callee);
  } else {
    function = evaluate(callee);
  }
  const auto args = evaluate_all(expr.parts.subspan(1));
  std::span<const Keyword> keywords = evaluate_all(expr.keywords);
  if (caller != nullptr) {
    std::vector<Keyword> more(keywords.begin(), keywords.end());
    more.push_back({"caller", *caller});
    keywords = copy(more);
  }
  if (method != nullptr) return invoke(*method, {object, args, keywords});
  return call(function, {object, args, keywords});
}

}  // namespace octet::jinja
