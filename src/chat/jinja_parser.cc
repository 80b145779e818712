// From tokens to statements; the expressions are jinja_parse_expressions.cc's.
#include "chat/jinja_parser.h"

namespace octet::jinja {
namespace {

class Parser {
 public:
  Parser(Template& into, TokenStream& tokens) : into_(into), tokens_(tokens), expressions_(into, tokens) {}

  // Statements up to a block tag that begins with one of `ends` (not taken), or up to the end of the template.
  Stmts body(std::initializer_list<std::string_view> ends) {
    const TokenStream::Nested nested(tokens_);
    std::vector<const Stmt*> stmts;
    for (;;) {
      const Token& token = tokens_.now();
      if (token.kind == TokenKind::kText) {
        Stmt stmt{.kind = StmtKind::kText, .line = token.line, .value = Value::of(token.text)};
        stmts.push_back(make(stmt));
        tokens_.next();
      } else if (token.kind == TokenKind::kVariableBegin) {
        tokens_.next();
        stmts.push_back(make({.kind = StmtKind::kOutput, .line = token.line, .expr = expressions_.tuple()}));
        expect(TokenKind::kVariableEnd, "}}");
      } else if (token.kind == TokenKind::kBlockBegin) {
        tokens_.next();
        for (std::string_view end : ends) {
          if (tokens_.is_name(end)) return into_.arena.copy(stmts);
        }
        if (const Stmt* stmt = statement(token.line)) stmts.push_back(stmt);
      } else {
        if (ends.size() != 0) tokens_.fail("the template ends where {{% {} %}} is expected", *(ends.end() - 1));
        return into_.arena.copy(stmts);
      }
    }
  }

 private:
  const Stmt* make(const Stmt& stmt) { return into_.arena.make(stmt); }
  void expect(TokenKind kind, std::string_view shown) {
    if (tokens_.now().kind != kind) tokens_.fail("expected \"{}\", got {}", shown, tokens_.shown());
    tokens_.next();
  }
  void end_block() { expect(TokenKind::kBlockEnd, "%}"); }
  // The body behind a tag, and the tag {% end %}.
  Stmts body_until(std::string_view end) {
    end_block();
    const Stmts stmts = body({end});
    tokens_.next();
    end_block();
    return stmts;
  }

  // Behind "{%". Null where the tag leaves nothing to do.
  const Stmt* statement(uint32_t line) {
    const std::string_view tag = tokens_.take_name("a tag");
    Stmt stmt{.line = line};
    if (tag == "if") {
      parse_if(stmt);
    } else if (tag == "for") {
      parse_for(stmt);
    } else if (tag == "set") {
      parse_set(stmt);
    } else if (tag == "macro") {
      stmt.kind = StmtKind::kMacro;
      const std::string_view name = tokens_.take_name("the name of a macro");
      stmt.target = into_.arena.make<Target>({.name = expressions_.number_of(name)});
      stmt.macro = macro(name);
    } else if (tag == "call") {
      stmt.kind = StmtKind::kCallBlock;
      Macro caller{.name = "caller", .parameters = {}};
      if (tokens_.is_operator("(")) caller.parameters = parameters();
      stmt.expr = expressions_.expression();
      if (stmt.expr->kind != ExprKind::kCall) tokens_.fail("{{% call %}} wants a call");
      caller.body = loopless("endcall");
      stmt.macro = into_.arena.make(caller);
    } else if (tag == "filter") {
      stmt.kind = StmtKind::kFilterBlock;
      stmt.expr = expressions_.filters(nullptr, true);
      stmt.body = body_until("endfilter");
    } else if (tag == "with") {
      stmt.kind = StmtKind::kWith;
      std::vector<Assignment> assignments;
      while (tokens_.now().kind != TokenKind::kBlockEnd) {
        if (!assignments.empty()) tokens_.take_operator(",");
        const Target* target = expressions_.target(false);
        tokens_.take_operator("=");
        assignments.push_back({target, expressions_.expression()});
      }
      stmt.assignments = into_.arena.copy(assignments);
      stmt.body = body_until("endwith");
    } else if (tag == "generation" || tag == "block") {
      stmt.kind = tag == "block" ? StmtKind::kScope : StmtKind::kGeneration;
      into_.marks_answers |= tag == "generation";
      if (tag == "block") tokens_.take_name("the name of a block");
      stmt.body = body_until(tag == "block" ? "endblock" : "endgeneration");
    } else if (tag == "break" || tag == "continue") {
      stmt.kind = tag == "break" ? StmtKind::kBreak : StmtKind::kContinue;
      if (loops_ == 0) tokens_.fail("{{% {} %}} outside of a loop", tag);
      end_block();
    } else {
      const std::vector<std::string> tags = {"if", "for", "set", "macro", "call", "filter", "with", "generation"};
      tokens_.fail("unknown tag \"{}\"{}", tag, if_near(std::string(tag), tags, " (nearest: {})"));
    }
    return make(stmt);
  }

  void parse_if(Stmt& stmt) {
    stmt.kind = StmtKind::kIf;
    std::vector<Branch> branches;
    for (;;) {
      const Expr* test = expressions_.tuple();
      end_block();
      branches.push_back({test, body({"elif", "else", "endif"})});
      const std::string_view next = tokens_.take_name("endif");
      if (next == "elif") continue;
      if (next == "else") {
        end_block();
        stmt.body = body({"endif"});
        tokens_.next();
      }
      end_block();
      break;
    }
    stmt.branches = into_.arena.copy(branches);
  }

  void parse_for(Stmt& stmt) {
    stmt.kind = StmtKind::kFor;
    stmt.target = expressions_.target(false);
    if (!tokens_.skip_name("in")) tokens_.fail("expected \"in\", got {}", tokens_.shown());
    stmt.expr = expressions_.tuple(false);
    if (tokens_.skip_name("if")) stmt.test = expressions_.expression();
    stmt.recursive = tokens_.skip_name("recursive");
    end_block();
    ++loops_;
    stmt.body = body({"else", "endfor"});
    --loops_;
    if (tokens_.take_name("endfor") == "else") {
      end_block();
      stmt.otherwise = body({"endfor"});
      tokens_.next();
    }
    end_block();
  }

  void parse_set(Stmt& stmt) {
    stmt.target = expressions_.target(true);
    if (tokens_.skip_operator("=")) {
      stmt.kind = StmtKind::kSet;
      stmt.expr = expressions_.tuple();
      return end_block();
    }
    stmt.kind = StmtKind::kSetBlock;
    if (tokens_.is_operator("|")) stmt.expr = expressions_.filters(nullptr, false);
    stmt.body = body_until("endset");
  }

  std::span<const Assignment> parameters() {
    std::vector<Assignment> out;
    tokens_.take_operator("(");
    while (!tokens_.skip_operator(")")) {
      if (!out.empty()) tokens_.take_operator(",");
      if (tokens_.skip_operator(")")) break;
      const int32_t name = expressions_.number_of(tokens_.take_name("a parameter"));
      const Expr* value = tokens_.skip_operator("=") ? expressions_.expression() : nullptr;
      out.push_back({into_.arena.make<Target>({.name = name}), value});
    }
    return into_.arena.copy(out);
  }

  const Macro* macro(std::string_view name) {
    Macro out{.name = name, .parameters = parameters()};
    const size_t first = tokens_.place();
    out.body = loopless("endmacro");
    for (size_t i = first; i < tokens_.place(); ++i) {
      out.uses_varargs |= tokens_.at(i).kind == TokenKind::kName && tokens_.at(i).text == "varargs";
      out.uses_kwargs |= tokens_.at(i).kind == TokenKind::kName && tokens_.at(i).text == "kwargs";
    }
    return into_.arena.make(out);
  }

  // A body that loops around it do not reach into.
  Stmts loopless(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const Stmts stmts = body_until(end);
    loops_ = loops;
    return stmts;
  }

  Template& into_;
  TokenStream& tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

void parse(Template& into, const std::string& where, const TemplateOptions& options) {
  TokenStream tokens(lex(into.source, into.arena, where, options), where);
  ExpressionParser names(into, tokens);
  into.strict_undefined = options.strict_undefined;
  into.loop = names.number_of("loop");
  into.caller = names.number_of("caller");
  into.varargs = names.number_of("varargs");
  into.kwargs = names.number_of("kwargs");
  into.body = Parser(into, tokens).body({});
}

}  // namespace octet::jinja
