// What the parsers of statements and expressions share: the tokens, and the grammar of expressions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "chat/jinja_ast.h"
#include "chat/jinja_lexer.h"

namespace octet::jinja {

// Deeper nesting in a template's source is an error: parsing and rendering recurse.
inline constexpr int kDeepestNesting = 100;

class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, const std::string& where) : tokens_(std::move(tokens)), where_(where) {}

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    octet::fail(ErrorCode::kInvalidArgument, "{}:{}: {}", where_, now().line,
                fmt::format(format, std::forward<Args>(args)...));
  }
  const Token& now() const { return tokens_[place_]; }
  const Token& at(size_t place) const { return tokens_[place]; }
  size_t place() const { return place_; }
  void next() {
    if (now().kind != TokenKind::kEnd) ++place_;
  }
  std::string shown() const { return now().kind == TokenKind::kEnd ? "the end" : fmt::format("\"{}\"", now().text); }

  bool is_operator(std::string_view text) const { return now().kind == TokenKind::kOperator && now().text == text; }
  bool is_name(std::string_view text) const { return now().kind == TokenKind::kName && now().text == text; }
  bool skip_operator(std::string_view text) { return is_operator(text) ? next(), true : false; }
  bool skip_name(std::string_view text) { return is_name(text) ? next(), true : false; }
  void take_operator(std::string_view text) {
    if (!skip_operator(text)) fail("expected \"{}\", got {}", text, shown());
  }
  std::string_view take_name(std::string_view what) {
    if (now().kind != TokenKind::kName) fail("expected {}, got {}", what, shown());
    const std::string_view name = now().text;
    return next(), name;
  }

  class Nested {
   public:
    explicit Nested(TokenStream& tokens) : tokens_(tokens) {
      if (++tokens.depth_ > kDeepestNesting) tokens.fail("nested deeper than {} levels", kDeepestNesting);
    }
    ~Nested() { --tokens_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    TokenStream& tokens_;
  };

 private:
  std::vector<Token> tokens_;
  const std::string& where_;
  size_t place_ = 0;
  int depth_ = 0;
};

class ExpressionParser {
 public:
  ExpressionParser(Template& into, TokenStream& tokens) : into_(into), tokens_(tokens) {}

  int32_t number_of(std::string_view name);
  const Expr* expression();  // with `if ... else`
  // One expression or, with commas, a tuple; `conditional` false: `if` ends it, as in {% for %}.
  const Expr* tuple(bool conditional = true);
  // The filters behind `subject`; `named`: the first one's name comes without a bar.
  const Expr* filters(const Expr* subject, bool named);
  const Target* target(bool attributes);

 private:
  using Parse = const Expr* (ExpressionParser::*)();
  const Expr* make(ExprKind kind, const std::vector<const Expr*>& parts);
  const Expr* make(Expr expr);
  const Expr* chain(ExprKind kind, Parse part, bool word, std::string_view sign);
  const Expr* alternatives();
  const Expr* conjunction();
  const Expr* negation();
  const Expr* comparison();
  const Expr* sum();
  const Expr* concatenation();
  const Expr* product();
  const Expr* power();
  const Expr* signed_operand() { return operand(true); }
  const Expr* operand(bool with_filters);
  const Expr* primary();
  const Expr* bracketed();
  const Expr* postfix(const Expr* object);
  const Expr* subscript(const Expr* object);
  const Expr* slice_part(std::string_view end);
  const Expr* call(const Expr* callee);
  const Expr* test(const Expr* subject);
  void arguments(std::vector<const Expr*>& parts, Expr& into);
  const Expr* one_or_tuple(Parse part);
  bool at_end_of_tuple() const;

  Template& into_;
  TokenStream& tokens_;
};

}  // namespace octet::jinja
