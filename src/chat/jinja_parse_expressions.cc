// The grammar of expressions, by precedence: if-else, or, and, not, comparisons, + and -, ~, * / // %, **, signs,
// members and calls, filters and tests.
#include "chat/jinja_parser.h"

namespace octet::jinja {

int32_t ExpressionParser::number_of(std::string_view name) {
  const auto [found, added] = into_.numbers.emplace(name, static_cast<int32_t>(into_.names.size()));
  if (!added) return found->second;
  constexpr std::string_view kLoopFields[] = {"",     "index",  "index0",   "revindex", "revindex0", "first",
                                              "last", "length", "previtem", "nextitem", "depth",     "depth0"};
  Name entry{.text = name};
  entry.string_method = find_string_method(name);
  entry.list_method = find_list_method(name);
  entry.dict_method = find_dict_method(name);
  entry.loop_method = find_loop_method(name);
  entry.global = find_global(name);
  for (size_t i = 1; i < std::size(kLoopFields); ++i) {
    if (kLoopFields[i] == name) entry.loop_field = static_cast<LoopField>(i);
  }
  into_.names.push_back(entry);
  return found->second;
}

const Expr* ExpressionParser::make(Expr expr) {
  expr.line = tokens_.now().line;
  return into_.arena.make(expr);
}

const Expr* ExpressionParser::make(ExprKind kind, const std::vector<const Expr*>& parts) {
  return make({.kind = kind, .parts = into_.arena.copy(parts)});
}

const Expr* ExpressionParser::expression() {
  const TokenStream::Nested nested(tokens_);
  std::vector<const Expr*> parts = {alternatives()};
  if (!tokens_.skip_name("if")) return parts[0];
  parts.push_back(alternatives());
  parts.push_back(tokens_.skip_name("else") ? expression() : nullptr);
  return make(ExprKind::kConditional, parts);
}

bool ExpressionParser::at_end_of_tuple() const {
  const TokenKind kind = tokens_.now().kind;
  return kind == TokenKind::kVariableEnd || kind == TokenKind::kBlockEnd || kind == TokenKind::kEnd ||
         tokens_.is_operator(")") || tokens_.is_name("in") || tokens_.is_name("recursive") || tokens_.is_operator("=");
}

const Expr* ExpressionParser::one_or_tuple(Parse part) {
  const Expr* first = (this->*part)();
  if (!tokens_.is_operator(",")) return first;
  std::vector<const Expr*> items = {first};
  while (tokens_.skip_operator(",") && !at_end_of_tuple()) items.push_back((this->*part)());
  return make(ExprKind::kTuple, items);
}

const Expr* ExpressionParser::tuple(bool conditional) {
  return one_or_tuple(conditional ? &ExpressionParser::expression : &ExpressionParser::alternatives);
}

const Target* ExpressionParser::target(bool attributes) {
  const TokenStream::Nested nested(tokens_);
  std::vector<const Target*> items;
  bool many = false;
  do {
    if (!items.empty() && at_end_of_tuple()) break;
    if (tokens_.skip_operator("(")) {
      items.push_back(target(false));
      tokens_.take_operator(")");
      continue;
    }
    Target one{.name = number_of(tokens_.take_name("a name to assign to"))};
    if (one.name == into_.loop) tokens_.fail("\"loop\" cannot be assigned to");
    if (attributes && tokens_.skip_operator(".")) one.attribute = tokens_.take_name("an attribute");
    items.push_back(into_.arena.make(one));
  } while (tokens_.skip_operator(",") && (many = true));
  return many ? into_.arena.make<Target>({.items = into_.arena.copy(items)}) : items[0];
}

const Expr* ExpressionParser::chain(ExprKind kind, Parse part, bool word, std::string_view sign) {
  const Expr* first = (this->*part)();
  std::vector<const Expr*> parts;
  while (word ? tokens_.skip_name(sign) : tokens_.skip_operator(sign)) {
    if (parts.empty()) parts.push_back(first);
    parts.push_back((this->*part)());
  }
  return parts.empty() ? first : make(kind, parts);
}

const Expr* ExpressionParser::alternatives() {
  return chain(ExprKind::kOr, &ExpressionParser::conjunction, true, "or");
}
const Expr* ExpressionParser::conjunction() { return chain(ExprKind::kAnd, &ExpressionParser::negation, true, "and"); }

const Expr* ExpressionParser::negation() {
  if (!tokens_.skip_name("not")) return comparison();
  const TokenStream::Nested nested(tokens_);
  return make(ExprKind::kNot, {negation()});
}

const Expr* ExpressionParser::comparison() {
  constexpr std::string_view kSigns[] = {"==", "!=", "<", "<=", ">", ">="};
  std::vector<const Expr*> parts = {sum()};
  std::vector<Comparison> comparisons;
  for (;;) {
    const size_t before = comparisons.size();
    for (size_t i = 0; i < std::size(kSigns); ++i) {
      if (!tokens_.is_operator(kSigns[i])) continue;
      tokens_.next();
      comparisons.push_back(static_cast<Comparison>(i));
      break;
    }
    if (comparisons.size() == before) {
      const Token& behind = tokens_.at(tokens_.place() + (tokens_.is_name("not") ? 1 : 0));
      if (behind.kind != TokenKind::kName || behind.text != "in") break;
      comparisons.push_back(tokens_.skip_name("not") ? Comparison::kNotIn : Comparison::kIn);
      tokens_.next();
    }
    parts.push_back(sum());
  }
  if (comparisons.empty()) return parts[0];
  return make(
      {.kind = ExprKind::kCompare, .parts = into_.arena.copy(parts), .comparisons = into_.arena.copy(comparisons)});
}

const Expr* ExpressionParser::sum() {
  const Expr* left = concatenation();
  int minuses = 0;
  for (;;) {
    std::vector<const Expr*> parts = {left};
    while (tokens_.skip_operator("+")) parts.push_back(concatenation());
    if (parts.size() > 1) left = make(ExprKind::kSum, parts);
    if (!tokens_.skip_operator("-")) return left;
    if (++minuses > kDeepestNesting) tokens_.fail("more than {} subtractions in a row", kDeepestNesting);
    parts = {left, concatenation()};
    left = make({.kind = ExprKind::kArithmetic, .op = Operator::kSubtract, .parts = into_.arena.copy(parts)});
  }
}

const Expr* ExpressionParser::concatenation() {
  return chain(ExprKind::kConcat, &ExpressionParser::product, false, "~");
}

const Expr* ExpressionParser::product() {
  constexpr std::pair<std::string_view, Operator> kSigns[] = {
      {"*", Operator::kMultiply}, {"/", Operator::kDivide}, {"//", Operator::kFloorDivide}, {"%", Operator::kModulo}};
  const Expr* left = power();
  for (int factors = 0;; ++factors) {
    if (factors > kDeepestNesting) tokens_.fail("more than {} factors in a row", kDeepestNesting);
    const auto* found = std::find_if(std::begin(kSigns), std::end(kSigns),
                                     [&](const auto& sign) { return tokens_.is_operator(sign.first); });
    if (found == std::end(kSigns)) return left;
    tokens_.next();
    const std::vector<const Expr*> parts = {left, power()};
    left = make({.kind = ExprKind::kArithmetic, .op = found->second, .parts = into_.arena.copy(parts)});
  }
}

const Expr* ExpressionParser::power() {
  const Expr* left = signed_operand();
  for (int powers = 0; tokens_.skip_operator("**"); ++powers) {
    if (powers > kDeepestNesting) tokens_.fail("more than {} powers in a row", kDeepestNesting);
    const std::vector<const Expr*> parts = {left, signed_operand()};
    left = make({.kind = ExprKind::kArithmetic, .op = Operator::kPower, .parts = into_.arena.copy(parts)});
  }
  return left;
}

const Expr* ExpressionParser::operand(bool with_filters) {
  const Expr* out = nullptr;
  if (tokens_.is_operator("-") || tokens_.is_operator("+")) {
    const TokenStream::Nested nested(tokens_);
    const ExprKind kind = tokens_.is_operator("-") ? ExprKind::kNegate : ExprKind::kPlus;
    tokens_.next();
    out = make(kind, {operand(false)});
  } else {
    out = primary();
  }
  out = postfix(out);
  return with_filters ? filters(out, false) : out;
}

const Expr* ExpressionParser::primary() {
  const Token& token = tokens_.now();
  if (token.kind == TokenKind::kOperator) return bracketed();
  if (token.kind == TokenKind::kNumber) return tokens_.next(), make({.value = token.value});
  if (token.kind == TokenKind::kString) {
    std::string joined;
    int parts = 0;
    for (; tokens_.now().kind == TokenKind::kString; tokens_.next(), ++parts) joined += tokens_.now().value.text();
    return make({.value = parts == 1 ? token.value : Value::of(into_.arena.copy(joined))});
  }
  if (token.kind != TokenKind::kName) tokens_.fail("expected a value, got {}", tokens_.shown());
  tokens_.next();
  const std::string_view name = token.text;
  if (name == "true" || name == "True") return make({.value = Value::of(true)});
  if (name == "false" || name == "False") return make({.value = Value::of(false)});
  if (name == "none" || name == "None") return make({.value = Value::none()});
  return make({.kind = ExprKind::kName, .name = number_of(name)});
}

const Expr* ExpressionParser::bracketed() {
  std::vector<const Expr*> parts;
  if (tokens_.skip_operator("(")) {
    if (tokens_.skip_operator(")")) return make(ExprKind::kTuple, parts);
    const Expr* inside = tuple();
    tokens_.take_operator(")");
    return inside;
  }
  const bool dict = tokens_.is_operator("{");
  if (!dict && !tokens_.is_operator("[")) tokens_.fail("expected a value, got {}", tokens_.shown());
  tokens_.next();
  const std::string_view close = dict ? "}" : "]";
  while (!tokens_.skip_operator(close)) {
    if (!parts.empty()) {
      tokens_.take_operator(",");
      if (tokens_.skip_operator(close)) break;
    }
    parts.push_back(expression());
    if (!dict) continue;
    tokens_.take_operator(":");
    parts.push_back(expression());
  }
  return make(dict ? ExprKind::kDict : ExprKind::kList, parts);
}

const Expr* ExpressionParser::postfix(const Expr* object) {
  for (int links = 0;; ++links) {
    if (links > kDeepestNesting) tokens_.fail("more than {} members, items and calls in a row", kDeepestNesting);
    if (tokens_.is_operator("(")) {
      object = call(object);
    } else if (tokens_.skip_operator("[")) {
      object = subscript(object);
    } else if (tokens_.skip_operator(".")) {
      const Token& member = tokens_.now();
      std::vector<const Expr*> parts = {object};
      if (member.kind == TokenKind::kNumber) {
        tokens_.next();
        parts.push_back(make({.value = member.value}));
        object = make(ExprKind::kItem, parts);
      } else {
        const std::string_view name = tokens_.take_name("a member");
        object = make({.kind = ExprKind::kMember,
                       .name = number_of(name),
                       .value = Value::of(name),
                       .parts = into_.arena.copy(parts)});
      }
    } else {
      return object;
    }
  }
}

const Expr* ExpressionParser::slice_part(std::string_view end) {
  if (tokens_.is_operator(":") || tokens_.is_operator(end)) return nullptr;
  return expression();
}

const Expr* ExpressionParser::subscript(const Expr* object) {
  std::vector<const Expr*> keys;
  while (!tokens_.is_operator("]")) {
    if (!keys.empty()) tokens_.take_operator(",");
    const Expr* start = slice_part("]");
    if (keys.empty() && tokens_.skip_operator(":")) {
      const Expr* stop = slice_part("]");
      const Expr* step = tokens_.skip_operator(":") ? slice_part("]") : nullptr;
      tokens_.take_operator("]");
      return make(ExprKind::kSlice, {object, start, stop, step});
    }
    if (start == nullptr) tokens_.fail("expected an index, got {}", tokens_.shown());
    keys.push_back(start);
  }
  tokens_.next();
  return make(ExprKind::kItem, {object, keys.size() == 1 ? keys[0] : make(ExprKind::kTuple, keys)});
}

void ExpressionParser::arguments(std::vector<const Expr*>& parts, Expr& into) {
  std::vector<Argument> keywords;
  tokens_.take_operator("(");
  while (!tokens_.skip_operator(")")) {
    if (parts.size() > 1 || !keywords.empty()) {
      tokens_.take_operator(",");
      if (tokens_.skip_operator(")")) break;
    }
    if (tokens_.is_operator("*") || tokens_.is_operator("**")) tokens_.fail("starred arguments are not supported");
    const Token& first = tokens_.now();
    const Token& second = tokens_.at(tokens_.place() + (first.kind == TokenKind::kEnd ? 0 : 1));
    if (first.kind == TokenKind::kName && second.kind == TokenKind::kOperator && second.text == "=") {
      tokens_.next();
      tokens_.next();
      keywords.push_back({first.text, expression()});
    } else {
      if (!keywords.empty()) tokens_.fail("an argument without a name behind one with a name");
      parts.push_back(expression());
    }
  }
  into.keywords = into_.arena.copy(keywords);
}

const Expr* ExpressionParser::call(const Expr* callee) {
  Expr out{.kind = ExprKind::kCall};
  std::vector<const Expr*> parts = {callee};
  arguments(parts, out);
  out.parts = into_.arena.copy(parts);
  return make(out);
}

const Expr* ExpressionParser::filters(const Expr* subject, bool named) {
  const bool of_block = subject == nullptr;
  for (int links = 0;; ++links) {
    if (links > kDeepestNesting) tokens_.fail("more than {} filters in a row", kDeepestNesting);
    if (!of_block && tokens_.skip_name("is")) {
      subject = test(subject);
    } else if (named || tokens_.skip_operator("|")) {
      named = false;
      Expr out{.kind = ExprKind::kFilter};
      const std::string_view name = tokens_.take_name("a filter");
      out.value = Value::of(name);
      out.builtin = find_filter(name);
      std::vector<const Expr*> parts = {subject};
      if (tokens_.is_operator("(")) arguments(parts, out);
      out.parts = into_.arena.copy(parts);
      subject = make(out);
    } else if (!of_block && tokens_.is_operator("(")) {
      subject = call(subject);
    } else {
      return subject;
    }
  }
}

const Expr* ExpressionParser::test(const Expr* subject) {
  const bool negated = tokens_.skip_name("not");
  const std::string_view name = tokens_.take_name("a test");
  Expr out{.kind = ExprKind::kTest, .value = Value::of(name), .builtin = find_test(name)};
  std::vector<const Expr*> parts = {subject};
  const TokenKind kind = tokens_.now().kind;
  const bool begins_value = kind == TokenKind::kName || kind == TokenKind::kString || kind == TokenKind::kNumber ||
                            tokens_.is_operator("[") || tokens_.is_operator("{");
  if (tokens_.is_operator("(")) {
    arguments(parts, out);
  } else if (begins_value) {
    constexpr std::string_view kFollowing[] = {"else", "or", "and", "if", "in", "not", "recursive"};
    const bool follows = kind == TokenKind::kName && std::find(std::begin(kFollowing), std::end(kFollowing),
                                                               tokens_.now().text) != std::end(kFollowing);
    if (tokens_.is_name("is")) tokens_.fail("tests cannot be chained");
    if (!follows) parts.push_back(postfix(primary()));
  }
  out.parts = into_.arena.copy(parts);
  const Expr* made = make(out);
  return negated ? make(ExprKind::kNot, {made}) : made;
}

}  // namespace octet::jinja
