#include "chat/grammar.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace octet::guides {
namespace {

constexpr size_t kMaxRules = 5'000;

struct Part {
  enum Kind { kText, kSet, kRule, kSequence, kChoice, kRepeat } kind;
  std::string text{};
  std::vector<std::pair<uint32_t, uint32_t>> set{};
  int32_t rule = -1, least = 0, most = 0;
  std::vector<Part> parts{};
};

struct Rule {
  std::string name;
  bool defined = false, nullable = false;
  Part body{.kind = Part::kChoice};
};

class Parser {
 public:
  Parser(std::string_view text, const GuideLimits& limits) : text_(text), limits_(limits) {
    check(int64_t(text.size()) <= limits.source_bytes, ErrorCode::kInvalidArgument,
          "grammar: {} bytes exceed the limit of {}", text.size(), limits.source_bytes);
  }

  std::vector<Rule> parse() {
    for (space(true); at_ < text_.size(); space(true)) {
      const int32_t index = rule(name());
      space(false);
      if (!take("::=")) refuse("a rule without '::='");
      if (rules_[size_t(index)].defined) refuse(fmt::format("a second definition of '{}'", rules_[size_t(index)].name));
      rules_[size_t(index)].defined = true;
      space(true);
      Part body = choice(0);
      rules_[size_t(index)].body = std::move(body);
      if (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') refuse("text outside a rule");
    }
    for (const Rule& r : rules_)
      check(r.defined, ErrorCode::kInvalidArgument, "grammar: no definition of rule '{}'", r.name);
    check(index_.contains("root"), ErrorCode::kInvalidArgument, "grammar: no definition of rule 'root'");
    return std::move(rules_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    const auto line = std::count(text_.begin(), text_.begin() + int64_t(std::min(at_, text_.size())), '\n') + 1;
    fail(ErrorCode::kInvalidArgument, "grammar: line {}: {} at '{}'", line, what,
         text_.substr(std::min(at_, text_.size()), 40));
  }
  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  void space(bool lines) {
    while (more()) {
      const char c = text_[at_];
      if (c == '#') {
        while (more() && text_[at_] != '\n' && text_[at_] != '\r') at_++;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        at_++;
      } else {
        return;
      }
    }
  }
  static bool in_name(char c) { return std::isalnum(uint8_t(c)) || c == '-' || c == '_'; }
  std::string_view name() {
    const size_t begin = at_;
    while (more() && in_name(text_[at_])) at_++;
    if (at_ == begin) refuse("no name of a rule");
    return text_.substr(begin, at_ - begin);
  }
  int32_t rule(std::string_view name) {
    const auto [found, added] = index_.try_emplace(std::string(name), int32_t(rules_.size()));
    if (added) rules_.push_back({.name = std::string(name)});
    if (rules_.size() > kMaxRules) refuse(fmt::format("more than {} rules", kMaxRules));
    return found->second;
  }

  uint32_t hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; i++, at_++) {
      if (!more() || !std::isxdigit(uint8_t(text_[at_]))) refuse("a digit that is not hexadecimal");
      const char c = text_[at_];
      value = value * 16 + uint32_t(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (value > 0x10ffff) refuse("a character beyond U+10FFFF");
    return value;
  }

  uint32_t character() {
    if (!more()) refuse("the end within a literal");
    const uint8_t lead = uint8_t(text_[at_]);
    if (lead == '\\') {
      at_++;
      if (!more()) refuse("the end within a literal");
      const char c = text_[at_++];
      switch (c) {
        case 'x': return hex(2);
        case 'u': return hex(4);
        case 'U': return hex(8);
        case 't': return '\t';
        case 'r': return '\r';
        case 'n': return '\n';
        case '\\':
        case '"':
        case '[':
        case ']':
        case '-':
        case '^': return uint8_t(c);
        default: refuse(fmt::format("an unknown escape '\\{}'", c));
      }
    }
    const int length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
    if (length == 0 || at_ + size_t(length) > text_.size()) refuse("bytes that are not UTF-8");
    uint32_t c = length == 1 ? lead : lead & (0x7fu >> length);
    for (int i = 1; i < length; i++) c = c << 6 | (uint8_t(text_[at_ + size_t(i)]) & 63);
    at_ += size_t(length);
    return c;
  }

  Part choice(int64_t depth) {
    if (depth > limits_.depth) refuse(fmt::format("nesting deeper than {}", limits_.depth));
    Part all{.kind = Part::kChoice};
    do {
      space(true);
      all.parts.push_back(sequence(depth));
    } while (take("|"));
    return all;
  }

  Part sequence(int64_t depth) {
    Part all{.kind = Part::kSequence};
    for (space(depth > 0); more(); space(depth > 0)) {
      Part next{.kind = Part::kText};
      const char c = text_[at_];
      if (take("\"")) {
        while (!take("\"")) next.parts.push_back(one(character()));
        next.kind = Part::kSequence;
      } else if (take("[")) {
        next = bracket();
      } else if (take(".")) {
        next = {.kind = Part::kSet, .set = {{0, 0x10ffff}}};
      } else if (take("(")) {
        next = choice(depth + 1);
        space(true);
        if (!take(")")) refuse("a '(' without its ')'");
      } else if (c == '<' || c == '!') {
        refuse("a token, which is not enforced,");
      } else if (in_name(c)) {
        next = {.kind = Part::kRule, .rule = rule(name())};
      } else {
        break;
      }
      space(depth > 0);
      while (quantify(next)) space(depth > 0);
      all.parts.push_back(std::move(next));
    }
    return all;
  }

  static Part one(uint32_t c) { return {.kind = Part::kSet, .set = {{c, c}}}; }

  Part bracket() {
    const bool invert = take("^");
    std::vector<std::pair<uint32_t, uint32_t>> ranges;
    while (!take("]")) {
      const uint32_t low = character();
      uint32_t high = low;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        at_++;
        high = character();
      }
      if (high < low) refuse("a range of characters in reverse");
      ranges.emplace_back(low, high);
    }
    std::sort(ranges.begin(), ranges.end());
    Part out{.kind = Part::kSet};
    uint32_t next = 0;  // behind the ranges so far
    for (auto [low, high] : ranges) {
      if (invert && low > next) out.set.emplace_back(next, low - 1);
      if (!invert && high >= next) out.set.emplace_back(std::max(low, next), high);
      next = std::max(next, high + 1);
    }
    if (invert && next <= 0x10ffff) out.set.emplace_back(next, 0x10ffff);
    return out;
  }

  int32_t count() {
    int64_t value = 0;
    const size_t begin = at_;
    for (; more() && std::isdigit(uint8_t(text_[at_])); at_++)
      value = std::min<int64_t>(value * 10 + (text_[at_] - '0'), 1 << 30);
    return at_ == begin ? -1 : int32_t(value);
  }

  bool quantify(Part& part) {
    int32_t least = 0, most = kUnbounded;
    if (take("+")) {
      least = 1;
    } else if (take("?")) {
      most = 1;
    } else if (take("{")) {
      space(false);
      least = most = count();
      space(false);
      if (take(",")) {
        space(false);
        most = count();
        if (least < 0) least = most < 0 ? -1 : 0;
      }
      space(false);
      if (least < 0 || !take("}")) refuse("a repetition that is not {m}, {m,} or {m,n}");
      if (most != kUnbounded && most < least) refuse("a repetition with its bounds in reverse");
    } else if (!take("*")) {
      return false;
    }
    if (++quantifiers_ > kMaxRules * 10) refuse("too many repetitions");
    Part inner = std::move(part);
    part = {.kind = Part::kRepeat, .least = least, .most = most};
    part.parts.push_back(std::move(inner));
    return true;
  }

  std::string_view text_;
  const GuideLimits& limits_;
  size_t at_ = 0, quantifiers_ = 0;
  std::vector<Rule> rules_;
  std::map<std::string, int32_t, std::less<>> index_;
};

bool nullable(const Part& part, const std::vector<Rule>& rules) {
  const auto inner = [&](const Part& p) { return nullable(p, rules); };
  switch (part.kind) {
    case Part::kRule: return rules[size_t(part.rule)].nullable;
    case Part::kSequence: return std::ranges::all_of(part.parts, inner);
    case Part::kChoice: return std::ranges::any_of(part.parts, inner);
    case Part::kRepeat: return part.least == 0 || inner(part.parts[0]);
    default: return false;
  }
}

// Rules that may stand at the begin of a text of the part.
void first_rules(const Part& part, const std::vector<Rule>& rules, std::vector<int32_t>& out) {
  if (part.kind == Part::kRule) out.push_back(part.rule);
  for (const Part& inner : part.parts) {
    first_rules(inner, rules, out);
    if (part.kind == Part::kSequence && !nullable(inner, rules)) return;
  }
}

void refuse_left_recursion(const std::vector<Rule>& rules) {
  std::vector<std::vector<int32_t>> first(rules.size());
  for (size_t i = 0; i < rules.size(); i++) first_rules(rules[i].body, rules, first[i]);
  std::vector<uint8_t> state(rules.size(), 0);  // 1: on the path, 2: done
  for (size_t start = 0; start < rules.size(); start++) {
    if (state[start] != 0) continue;
    std::vector<std::pair<size_t, size_t>> path{{start, 0}};
    state[start] = 1;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == first[rule].size()) {
        state[rule] = 2;
        path.pop_back();
        continue;
      }
      const size_t target = size_t(first[rule][next++]);
      check(state[target] != 1, ErrorCode::kInvalidArgument,
            "grammar: rule '{}' begins with itself: left recursion is not enforced (write a repetition instead)",
            rules[target].name);
      if (state[target] == 0) state[target] = 1, path.emplace_back(target, 0);
    }
  }
}

bool refers(const Part& part) { return part.kind == Part::kRule || std::ranges::any_of(part.parts, refers); }

Expr lower(const Part& part, Expressions& x, const std::vector<int32_t>& numbers) {
  std::vector<Expr> parts;
  for (const Part& inner : part.parts) parts.push_back(lower(inner, x, numbers));
  switch (part.kind) {
    case Part::kText: return x.text(part.text);
    case Part::kSet: return x.characters(part.set, false);
    case Part::kRule: return x.rule(numbers[size_t(part.rule)]);
    case Part::kChoice: return x.alt(parts);
    case Part::kRepeat: return x.repeat(parts[0], part.least, part.most);
    default: break;
  }
  Expr all = kEmptyText;
  for (size_t i = parts.size(); i-- > 0;) all = x.concat(parts[i], all);
  return all;
}

}  // namespace

Expr grammar_expression(Expressions& x, std::string_view gbnf, const GuideLimits& limits) {
  std::vector<Rule> rules = Parser(gbnf, limits).parse();
  for (bool changed = true; changed;) {
    changed = false;
    for (Rule& rule : rules)
      if (!rule.nullable && nullable(rule.body, rules)) rule.nullable = changed = true;
  }
  refuse_left_recursion(rules);
  std::vector<int32_t> numbers;
  for (const Rule& rule : rules) numbers.push_back(x.add_rule(Unit::kNone, rule.nullable));
  Expr root = kNothing;
  for (size_t i = 0; i < rules.size(); i++) {
    const Expr body = lower(rules[i].body, x, numbers);
    x.set_rule_body(numbers[i], refers(rules[i].body) ? body : x.group(Unit::kText, body));
    if (rules[i].name == "root") root = x.rule(numbers[i]);
  }
  return root;
}

}  // namespace octet::guides
