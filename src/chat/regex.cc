#include "chat/regex.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace octet::guides {
namespace {

using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

struct Part {
  enum Kind { kSet, kSequence, kChoice, kRepeat, kBegin, kEnd, kAhead, kNotAhead } kind;
  Ranges set{};
  std::vector<Part> parts{};
  int32_t least = 0, most = 0;
};

constexpr uint32_t kLastCharacter = 0x10ffff;

Ranges normal(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges out;
  for (const auto& range : ranges) {
    if (!out.empty() && range.first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, range.second);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

Ranges negated(const Ranges& ranges) {
  Ranges out;
  uint32_t next = 0;
  for (const auto& [low, high] : normal(ranges)) {
    if (low > next) out.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastCharacter) out.emplace_back(next, kLastCharacter);
  return out;
}

const Ranges kDigits{{'0', '9'}};
const Ranges kWordCharacters{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Ranges kSpaces{{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                     {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const Ranges kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class Parser {
 public:
  Parser(std::string_view text, const GuideLimits& limits) : text_(text), limits_(limits) {
    check(int64_t(text.size()) <= limits.source_bytes, ErrorCode::kInvalidArgument,
          "regex: {} bytes exceed the limit of {}", text.size(), limits.source_bytes);
  }

  Part parse() {
    Part all = choice(0);
    if (at_ < text_.size()) refuse("a ')' without its '('");
    return all;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::kInvalidArgument, "regex: {} at byte {} of '{}'", what, at_, text_.substr(0, 200));
  }
  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  uint32_t character() {
    if (!more()) refuse("the end, where a character is expected");
    const uint8_t lead = uint8_t(text_[at_]);
    const int length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
    if (length == 0 || at_ + size_t(length) > text_.size()) refuse("bytes that are not UTF-8");
    uint32_t c = length == 1 ? lead : lead & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
      if ((uint8_t(text_[at_ + size_t(i)]) & 0xc0) != 0x80) refuse("bytes that are not UTF-8");
      c = c << 6 | (uint8_t(text_[at_ + size_t(i)]) & 63);
    }
    at_ += size_t(length);
    return c;
  }

  Part choice(int64_t depth) {
    if (depth > limits_.depth) refuse(fmt::format("nesting deeper than {}", limits_.depth));
    Part all{.kind = Part::kChoice};
    do all.parts.push_back(sequence(depth));
    while (take("|"));
    return all.parts.size() == 1 ? std::move(all.parts[0]) : all;
  }

  Part sequence(int64_t depth) {
    Part all{.kind = Part::kSequence};
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      Part next = atom(depth);
      quantify(next);
      all.parts.push_back(std::move(next));
    }
    return all;
  }

  Part atom(int64_t depth) {
    if (take("^")) return {.kind = Part::kBegin};
    if (take("$")) return {.kind = Part::kEnd};
    if (take(".")) return {.kind = Part::kSet, .set = negated(kLineEnds)};
    if (take("[")) return {.kind = Part::kSet, .set = bracket()};
    if (take("(")) {
      Part inner{.kind = Part::kSequence};
      if (take("?=")) {
        inner.kind = Part::kAhead;
      } else if (take("?!")) {
        inner.kind = Part::kNotAhead;
      } else if (take("?<")) {
        if (more() && (text_[at_] == '=' || text_[at_] == '!')) refuse("a look-behind, which is not enforced,");
        while (more() && text_[at_] != '>') at_++;
        if (!take(">")) refuse("a name of a group without '>'");
      } else if (!take("?:") && more() && text_[at_] == '?') {
        refuse("'(?', which is not enforced,");
      }
      inner.parts.push_back(choice(depth + 1));
      if (!take(")")) refuse("a '(' without its ')'");
      return inner;
    }
    if (take("\\")) {
      if (more() && (text_[at_] == 'b' || text_[at_] == 'B')) refuse("a word boundary (\\b), which is not enforced,");
      return {.kind = Part::kSet, .set = escaped()};
    }
    if (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?') refuse("a quantifier without its part");
    const uint32_t c = character();
    return {.kind = Part::kSet, .set = {{c, c}}};
  }

  Ranges escaped() {
    if (!more()) refuse("a '\\' at the end");
    const char c = text_[at_];
    const auto one = [&](uint32_t value) {
      at_++;
      return Ranges{{value, value}};
    };
    switch (c) {
      case 'd': return at_++, kDigits;
      case 'D': return at_++, negated(kDigits);
      case 'w': return at_++, kWordCharacters;
      case 'W': return at_++, negated(kWordCharacters);
      case 's': return at_++, kSpaces;
      case 'S': return at_++, negated(kSpaces);
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'v': return one('\v');
      case 'f': return one('\f');
      case 'r': return one('\r');
      case '0': return one(0);
      case 'x': return at_++, hex(2);
      case 'u':
        at_++;
        if (take("{")) {
          const size_t end = text_.find('}', at_);
          if (end == text_.npos || end == at_ || end > at_ + 6) refuse("a \\u{...} without its '}'");
          Ranges value = hex(end - at_);
          at_++;
          return value;
        }
        return hex(4);
      case 'c':
        at_++;
        if (!more() || !std::isalpha(uint8_t(text_[at_]))) refuse("a \\c without a letter");
        return one(uint32_t(text_[at_]) & 31);
      case 'p':
      case 'P': refuse("a property of characters (\\p), which is not enforced,");
      default: break;
    }
    if (c >= '1' && c <= '9') refuse("a back reference, which is not enforced,");
    if (std::isalpha(uint8_t(c))) refuse(fmt::format("an unknown escape '\\{}'", c));
    const uint32_t literal = character();
    return {{literal, literal}};
  }

  Ranges hex(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; i++) {
      if (!more() || !std::isxdigit(uint8_t(text_[at_]))) refuse("a digit that is not hexadecimal");
      const char c = text_[at_++];
      value = value * 16 + uint32_t(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (digits == 4 && value >= 0xd800 && value < 0xdc00 && take("\\u")) {
      const uint32_t low = hex(4)[0].first;
      if (low < 0xdc00 || low > 0xdfff) refuse("a surrogate without its other half");
      value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
    }
    if (value > kLastCharacter) refuse("a character beyond U+10FFFF");
    return {{value, value}};
  }

  Ranges bracket() {
    const bool invert = take("^");
    Ranges all;
    while (!take("]")) {
      const auto member = [&]() -> Ranges {
        if (!more()) refuse("a '[' without its ']'");
        if (!take("\\")) {
          const uint32_t c = character();
          return {{c, c}};
        }
        if (take("b")) return {{'\b', '\b'}};
        if (take("-")) return {{'-', '-'}};
        return escaped();
      };
      const Ranges low = member();
      const bool single = low.size() == 1 && low[0].first == low[0].second;
      if (single && at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        const size_t dash = at_++;
        const Ranges high = member();
        if (high.size() == 1 && high[0].first == high[0].second) {
          if (high[0].first < low[0].first) refuse("a range of characters in reverse");
          all.emplace_back(low[0].first, high[0].first);
          continue;
        }
        at_ = dash;  // [a-\d]: the dash is a character
      }
      all.insert(all.end(), low.begin(), low.end());
    }
    return invert ? negated(all) : normal(all);
  }

  int32_t count() {
    int64_t value = 0;
    const size_t begin = at_;
    for (; more() && std::isdigit(uint8_t(text_[at_])); at_++)
      value = std::min<int64_t>(value * 10 + (text_[at_] - '0'), 1 << 30);
    return at_ == begin ? -1 : int32_t(value);
  }

  void quantify(Part& part) {
    int32_t least = 0, most = kUnbounded;
    if (take("+")) {
      least = 1;
    } else if (take("?")) {
      most = 1;
    } else if (more() && text_[at_] == '{') {
      const size_t begin = at_++;
      least = most = count();
      if (least >= 0 && take(",")) most = more() && text_[at_] != '}' ? count() : kUnbounded;
      if (least < 0 || !take("}")) {  // ECMA-262's annex B: a brace that counts nothing is text
        at_ = begin;
        return;
      }
      if (most != kUnbounded && most < least) refuse("a repetition with its bounds in reverse");
    } else if (!take("*")) {
      return;
    }
    take("?");  // lazy or not, the texts are the same
    if (more() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?')) refuse("a quantifier of a quantifier");
    if (part.kind >= Part::kBegin) refuse("a repeated assertion, which is not enforced,");
    Part inner = std::move(part);
    part = {.kind = Part::kRepeat, .least = least, .most = most};
    part.parts.push_back(std::move(inner));
  }

  std::string_view text_;
  const GuideLimits& limits_;
  size_t at_ = 0;
};

bool nullable(const Part& part) {
  switch (part.kind) {
    case Part::kSet: return false;
    case Part::kRepeat: return part.least == 0 || nullable(part.parts[0]);
    case Part::kSequence: return std::ranges::all_of(part.parts, nullable);
    case Part::kChoice: return std::ranges::any_of(part.parts, nullable);
    default: return true;
  }
}

bool holds(const Part& part, Part::Kind kind) {
  return part.kind == kind || std::ranges::any_of(part.parts, [&](const Part& p) { return holds(p, kind); });
}

bool asserts(const Part& part) { return part.kind >= Part::kBegin; }

// Assertions are decided by place: `^` holds at the begin of the whole text, `$` at its end, and nothing else stands
// there.
class Lowering {
 public:
  Lowering(Expressions& expressions, RegexUse use)
      : x_(expressions), json_(use == RegexUse::kString), whole_(use == RegexUse::kText) {
    constexpr std::pair<uint32_t, uint32_t> kAll[] = {{0, kLastCharacter}};
    any_ = x_.repeat(x_.characters(kAll, json_), 0, kUnbounded);
    end_ = json_ ? x_.byte('"') : kEmptyText;
  }

  Expr whole(const Part& all) {
    std::vector<Expr> found;
    for (const Part* part : alternatives(all))
      for (const bool left : {true, false})
        for (const bool right : {true, false}) {
          if (whole_ && !(left && right)) continue;
          if (!whole_ && ((left && !holds(*part, Part::kBegin)) || (right && !holds(*part, Part::kEnd)))) continue;
          const Expr rest = sequence(*part, left, right, x_.concat(right ? kEmptyText : any_, end_));
          found.push_back(x_.concat(left ? kEmptyText : any_, rest));
        }
    return x_.alt(found);
  }

 private:
  static std::vector<const Part*> alternatives(const Part& all) {
    if (all.kind != Part::kChoice) return {&all};
    std::vector<const Part*> out;
    for (const Part& part : all.parts) out.push_back(&part);
    return out;
  }

  // `part`, then what follows up to the end of the text: look-aheads speak of all that follows.
  Expr sequence(const Part& part, bool left, bool right, Expr rest) {
    if (part.kind != Part::kSequence) return x_.concat(lower(part, left, right), rest);
    for (size_t i = part.parts.size(); i-- > 0;) {
      const Part& next = part.parts[i];
      const auto [at_left, at_right] = edges(part, i, left, right);
      if (next.kind != Part::kAhead && next.kind != Part::kNotAhead) {
        rest = x_.concat(lower(next, at_left, at_right), rest);
        continue;
      }
      const Expr ahead = x_.alt({x_.concat({lower(next.parts[0], at_left, false), any_, end_}),
                                 x_.concat(lower(next.parts[0], at_left, true), end_)});
      rest = x_.both({rest, next.kind == Part::kAhead ? ahead : x_.complement(ahead)});
    }
    return rest;
  }

  std::pair<bool, bool> edges(const Part& part, size_t i, bool left, bool right) const {
    const auto edge = [&](bool open, size_t from, size_t to, Part::Kind kind) {
      bool all_nullable = true, any_consumes = false;
      for (size_t j = from; j < to; j++) {
        all_nullable = all_nullable && nullable(part.parts[j]);
        any_consumes = any_consumes || !asserts(part.parts[j]);
      }
      check(!open || !any_consumes || !all_nullable || !holds(part.parts[i], kind), ErrorCode::kInvalidArgument,
            "regex: '{}' next to a part that may be empty is not enforced", kind == Part::kBegin ? '^' : '$');
      return open && !any_consumes;
    };
    return {edge(left, 0, i, Part::kBegin), edge(right, i + 1, part.parts.size(), Part::kEnd)};
  }

  Expr lower(const Part& part, bool left, bool right) {
    switch (part.kind) {
      case Part::kSet: return x_.characters(part.set, json_);
      case Part::kBegin: return left ? kEmptyText : kNothing;
      case Part::kEnd: return right ? kEmptyText : kNothing;
      case Part::kChoice: {
        std::vector<Expr> parts;
        for (const Part& p : part.parts) parts.push_back(lower(p, left, right));
        return x_.alt(parts);
      }
      case Part::kRepeat: {
        const Part& inner = part.parts[0];
        if (part.least == 0 && part.most == 1) return x_.alt({kEmptyText, lower(inner, left, right)});
        check(!holds(inner, Part::kBegin) && !holds(inner, Part::kEnd), ErrorCode::kInvalidArgument,
              "regex: '^' or '$' in a repetition is not enforced");
        return x_.repeat(lower(inner, false, false), part.least, part.most);
      }
      case Part::kSequence: {
        Expr all = kEmptyText;
        for (size_t i = part.parts.size(); i-- > 0;) {
          const auto [at_left, at_right] = edges(part, i, left, right);
          all = x_.concat(lower(part.parts[i], at_left, at_right), all);
        }
        return all;
      }
      default: fail(ErrorCode::kInvalidArgument, "regex: a look-ahead in a group is not enforced");
    }
  }

  Expressions& x_;
  bool json_, whole_;
  Expr any_, end_;
};

}  // namespace

Expr regex_expression(Expressions& expressions, std::string_view regex, RegexUse use, const GuideLimits& limits) {
  return Lowering(expressions, use).whole(Parser(regex, limits).parse());
}

}  // namespace octet::guides
