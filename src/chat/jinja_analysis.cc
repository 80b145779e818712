// What a template's source tells without rendering it: the names it wants, the form of messages it reads.
#include <algorithm>

#include "chat/jinja_ast.h"

namespace octet::jinja {
namespace {

// Names in the order they are met. A name counts as set behind an `if` when all of its branches set it.
class NameFinder {
 public:
  explicit NameFinder(const Template& parsed) : template_(parsed) {}

  std::set<std::string> run() {
    collect(template_.body);
    visit(template_.body);
    return std::move(found_);
  }

 private:
  using Names = std::set<int32_t>;

  // Names that the template sets outside of all scopes: its macros see them however late they are set.
  void collect(Stmts stmts) {
    for (const Stmt* stmt : stmts) {
      const bool sets =
          stmt->kind == StmtKind::kSet || stmt->kind == StmtKind::kSetBlock || stmt->kind == StmtKind::kMacro;
      if (sets && stmt->target->name >= 0 && stmt->target->attribute.empty()) global_.insert(stmt->target->name);
      if (stmt->kind != StmtKind::kIf) continue;
      for (const Branch& branch : stmt->branches) collect(branch.body);
      collect(stmt->body);
    }
  }

  void visit(Stmts stmts) {
    for (const Stmt* stmt : stmts) visit(*stmt);
  }
  // A body with a scope of its own.
  void visit_scope(Stmts stmts, std::initializer_list<const Target*> targets = {}) {
    const Names before = set_;
    for (const Target* target : targets) assign(*target);
    visit(stmts);
    set_ = before;
  }

  void visit(const Stmt& stmt) {
    switch (stmt.kind) {
      case StmtKind::kIf: return visit_if(stmt);
      case StmtKind::kFor: {
        visit(stmt.expr);
        const Names before = set_;
        assign(*stmt.target);
        set_.insert(template_.loop);
        visit(stmt.test);
        visit(stmt.body);
        set_ = before;
        return visit_scope(stmt.otherwise);
      }
      case StmtKind::kMacro: assign(*stmt.target); return visit_macro(*stmt.macro);
      case StmtKind::kCallBlock: visit(stmt.expr); return visit_macro(*stmt.macro);
      case StmtKind::kWith: {
        const Names before = set_;
        for (const Assignment& assignment : stmt.assignments) visit(assignment.value);
        for (const Assignment& assignment : stmt.assignments) assign(*assignment.target);
        visit(stmt.body);
        set_ = before;
        return;
      }
      case StmtKind::kSetBlock:
        visit_scope(stmt.body);
        visit(stmt.expr);
        return assign(*stmt.target);
      default:
        visit(stmt.expr);
        if (!stmt.body.empty()) visit_scope(stmt.body);
        if (stmt.target != nullptr) assign(*stmt.target);
    }
  }

  void visit_if(const Stmt& stmt) {
    const auto both = [](const Names& a, const Names& b) {
      Names out;
      std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(out, out.end()));
      return out;
    };
    visit(stmt.branches[0].test);
    const Names before = set_;
    visit(stmt.branches[0].body);
    Names after = set_;
    for (const Branch& branch : stmt.branches.subspan(1)) {
      set_ = before;
      visit(branch.test);
      visit(branch.body);
      after = both(after, set_);
    }
    set_ = before;
    visit(stmt.body);
    set_ = both(after, set_);
  }

  void visit_macro(const Macro& macro) {
    const Names before = set_;
    set_.insert(global_.begin(), global_.end());
    set_.insert({template_.caller, template_.varargs, template_.kwargs});
    for (const Assignment& parameter : macro.parameters) {
      assign(*parameter.target);
      visit(parameter.value);
    }
    visit(macro.body);
    set_ = before;
  }

  void assign(const Target& target) {
    if (!target.attribute.empty()) return read(target.name);
    if (target.name >= 0) set_.insert(target.name);
    for (const Target* item : target.items) assign(*item);
  }

  void read(int32_t name) {
    const Name& entry = template_.names[static_cast<size_t>(name)];
    if (entry.global == nullptr && !set_.contains(name)) found_.emplace(entry.text);
  }

  void visit(const Expr* expr) {
    if (expr == nullptr) return;
    if (expr->kind == ExprKind::kName) read(expr->name);
    for (const Expr* part : expr->parts) visit(part);
    for (const Argument& keyword : expr->keywords) visit(keyword.value);
  }

  const Template& template_;
  Names set_, global_;
  std::set<std::string> found_;
};

// How "content" and "arguments" of messages are used, under these names or those they are given to.
class FormFinder {
 public:
  explicit FormFinder(const Template& parsed) : template_(parsed) {}

  MessageForm run() {
    visit(template_.body);
    MessageForm form;
    form.content = !iterated_ ? MessageForm::Content::kText
                   : tested_  ? MessageForm::Content::kEither
                              : MessageForm::Content::kParts;
    form.null_content = null_;
    form.arguments_as_text = as_text_ && !as_object_;
    return form;
  }

 private:
  void visit(Stmts stmts) {
    for (const Stmt* stmt : stmts) visit(*stmt);
  }
  void visit(const Stmt& stmt) {
    if (stmt.kind == StmtKind::kFor && is_content(*stmt.expr)) iterated_ = true;
    if (stmt.kind == StmtKind::kFor && is_arguments(*stmt.expr)) as_object_ = true;
    if (stmt.kind == StmtKind::kOutput && is_arguments(*stmt.expr)) as_text_ = true;
    if (stmt.kind == StmtKind::kSet && is_content(*stmt.expr) && stmt.target->name >= 0)
      content_names_.insert(stmt.target->name);
    visit(stmt.expr);
    visit(stmt.test);
    for (const Branch& branch : stmt.branches) {
      visit(branch.test);
      visit(branch.body);
    }
    for (const Assignment& assignment : stmt.assignments) visit(assignment.value);
    visit(stmt.body);
    visit(stmt.otherwise);
    if (stmt.macro != nullptr) visit(stmt.macro->body);
  }

  void visit(const Expr* expr) {
    if (expr == nullptr) return;
    const Expr* first = expr->parts.empty() ? nullptr : expr->parts[0];
    const std::string_view name = expr->value.is_string() ? expr->value.text() : "";
    if (expr->kind == ExprKind::kTest && first != nullptr && is_content(*first)) {
      tested_ |= name == "string" || name == "iterable" || name == "sequence" || name == "mapping";
      null_ |= name == "none";
    }
    if (first != nullptr && is_arguments(*first)) {
      // Tests other than these, and `or`, tell nothing.
      as_object_ |= expr->kind == ExprKind::kFilter && (name == "tojson" || name == "items" || name == "dictsort");
      as_object_ |= expr->kind == ExprKind::kTest && (name == "string" || name == "mapping");
      as_object_ |= expr->kind == ExprKind::kMember || expr->kind == ExprKind::kItem;
    }
    if (expr->kind == ExprKind::kSum || expr->kind == ExprKind::kConcat)
      as_text_ |=
          std::any_of(expr->parts.begin(), expr->parts.end(), [&](const Expr* part) { return is_arguments(*part); });
    for (const Expr* part : expr->parts) visit(part);
    for (const Argument& keyword : expr->keywords) visit(keyword.value);
  }

  bool is_content(const Expr& expr) const {
    return is_member(expr, "content") || (expr.kind == ExprKind::kName && content_names_.contains(expr.name));
  }
  bool is_arguments(const Expr& expr) const { return is_member(expr, "arguments"); }
  // object.name, object['name'] or a variable called that
  bool is_member(const Expr& expr, std::string_view name) const {
    if (expr.kind == ExprKind::kMember || expr.kind == ExprKind::kName)
      return template_.names[static_cast<size_t>(expr.name)].text == name;
    return expr.kind == ExprKind::kItem && expr.parts[1]->kind == ExprKind::kConstant &&
           expr.parts[1]->value.is_string() && expr.parts[1]->value.text() == name;
  }

  const Template& template_;
  std::set<int32_t> content_names_;
  bool iterated_ = false, tested_ = false, null_ = false;
  bool as_text_ = false, as_object_ = false;
};

}  // namespace

std::set<std::string> undeclared_names(const Template& parsed) { return NameFinder(parsed).run(); }
MessageForm message_form_of(const Template& parsed) { return FormFinder(parsed).run(); }

}  // namespace octet::jinja
