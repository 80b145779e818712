// Numbers between bounds as expressions over digits.
#include <algorithm>

#include "base/error.h"
#include "chat/json_schema.h"

namespace octet::guides {
namespace {

// A decimal number: digits without leading zeros ("0" at least), a fraction without trailing ones.
struct Decimal {
  bool negative = false;
  std::string digits, fraction;
  bool zero() const { return digits == "0" && fraction.empty(); }
};

Decimal decimal(const Json& number) {
  std::string text = number.dump();
  Decimal out;
  if (text[0] == '-') out.negative = true, text.erase(0, 1);
  int64_t exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != text.npos)
    exponent = std::stoll(text.substr(e + 1)), text.resize(e);
  const size_t point = text.find('.');
  std::string all = text.substr(0, point) + (point == text.npos ? "" : text.substr(point + 1));
  int64_t places = int64_t(point == text.npos ? text.size() : point) + exponent;  // digits before the point
  if (places < 0) all.insert(0, size_t(-places), '0'), places = 0;
  if (places > int64_t(all.size())) all.append(size_t(places) - all.size(), '0');
  out.digits = all.substr(0, size_t(places));
  out.fraction = all.substr(size_t(places));
  out.digits.erase(0, std::min(out.digits.find_first_not_of('0'), out.digits.size()));
  if (out.digits.empty()) out.digits = "0";
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.zero()) out.negative = false;
  return out;
}

// Expressions of magnitudes: no sign, no exponent, no leading zero; any number of zeros behind the point.
class Digits {
 public:
  explicit Digits(Expressions& x) : x_(x) {
    digit_ = range('0', '9');
    any_ = x.repeat(digit_, 0, kUnbounded);
    zeros_ = x.repeat(x.byte('0'), 0, kUnbounded);
    fraction_ = x.alt({kEmptyText, x.concat(x.byte('.'), x.repeat(digit_, 1, kUnbounded))});
    no_fraction_ = x.alt({kEmptyText, x.concat(x.byte('.'), x.repeat(x.byte('0'), 1, kUnbounded))});
  }

  Expr whole() { return x_.alt({x_.byte('0'), x_.concat(range('1', '9'), any_)}); }
  Expr all() { return x_.concat(whole(), fraction_); }
  Expr integers() { return x_.concat(whole(), no_fraction_); }
  Expr exactly(const Decimal& d) {
    if (d.fraction.empty()) return x_.concat(x_.text(d.digits), no_fraction_);
    return x_.concat(x_.text(d.digits + "." + d.fraction), zeros_);
  }

  Expr at_least(const Decimal& bound, bool strict) {
    const std::string& whole = bound.digits;
    const int32_t n = int32_t(whole.size());
    std::vector<Expr> parts{x_.concat({range('1', '9'), x_.repeat(digit_, n, kUnbounded), fraction_})};
    for (int32_t i = 0; i < n; i++)
      parts.push_back(x_.concat({text(whole, i), range(char(whole[size_t(i)] + 1), '9'),
                                 x_.repeat(digit_, n - 1 - i, n - 1 - i), fraction_}));
    const std::string& f = bound.fraction;
    Expr rest = strict ? x_.concat({any_, range('1', '9'), any_}) : any_;
    for (size_t i = f.size(); i-- > 0;)
      rest = x_.alt({x_.concat(x_.byte(uint8_t(f[i])), rest), x_.concat(range(char(f[i] + 1), '9'), any_)});
    if (f.empty() && !strict) {
      parts.push_back(x_.concat(x_.text(whole), fraction_));
    } else {
      parts.push_back(x_.concat({x_.text(whole), x_.byte('.'), rest}));
    }
    return x_.alt(parts);
  }

  Expr at_most(const Decimal& bound, bool strict) {
    const std::string& whole = bound.digits;
    const int32_t n = int32_t(whole.size());
    std::vector<Expr> parts;
    if (n > 1) {
      parts.push_back(x_.concat(x_.byte('0'), fraction_));
      parts.push_back(x_.concat({range('1', '9'), x_.repeat(digit_, 0, n - 2), fraction_}));
    }
    for (int32_t i = 0; i < n; i++)
      parts.push_back(x_.concat({text(whole, i), range(i == 0 && n > 1 ? '1' : '0', char(whole[size_t(i)] - 1)),
                                 x_.repeat(digit_, n - 1 - i, n - 1 - i), fraction_}));
    const std::string& f = bound.fraction;
    if (f.empty()) {
      if (!strict) parts.push_back(x_.concat(x_.text(whole), no_fraction_));
      return x_.alt(parts);
    }
    Expr rest = strict ? kNothing : zeros_;
    for (size_t i = f.size(); i-- > 0;) {
      rest = x_.alt({x_.concat(x_.byte(uint8_t(f[i])), rest), x_.concat(range('0', char(f[i] - 1)), any_)});
      if (i > 0) rest = x_.alt({kEmptyText, rest});
    }
    parts.push_back(x_.concat(x_.text(whole), x_.alt({kEmptyText, x_.concat(x_.byte('.'), rest)})));
    return x_.alt(parts);
  }

 private:
  Expr range(char low, char high) {
    ByteSet set;
    for (unsigned c = uint8_t(low); c <= uint8_t(high); c++) set.set(c);
    return x_.bytes(set);
  }
  Expr text(const std::string& word, int32_t length) {
    return x_.text(std::string_view(word).substr(0, size_t(length)));
  }

  Expressions& x_;
  Expr digit_, any_, zeros_, fraction_, no_fraction_;
};

struct Bound {
  Decimal value;
  bool strict;
};

// The bounds of a schema on one side; draft 4 has exclusiveMinimum: true beside minimum.
std::vector<Bound> bounds(const Json& schema, const char* name, const char* exclusive) {
  std::vector<Bound> out;
  const bool strict = schema.contains(exclusive) && schema[exclusive].is_boolean() && schema[exclusive].get<bool>();
  if (schema.contains(name)) out.push_back({decimal(schema[name]), strict});
  if (schema.contains(exclusive) && schema[exclusive].is_number()) out.push_back({decimal(schema[exclusive]), true});
  return out;
}

}  // namespace

std::pair<uint64_t, int32_t> divisor(const Json& number) {
  const Decimal d = decimal(number);
  const std::string digits = d.digits + d.fraction;
  check(!d.negative && !d.zero() && digits.size() <= 9 + size_t(d.digits == "0"), ErrorCode::kInvalidArgument,
        "JSON schema: \"multipleOf\": {} is not enforced (want more than 0, at most 9 digits)", number.dump());
  return {uint64_t(std::stoll(digits)), int32_t(d.fraction.size())};
}

Expr number_value(Expressions& x, const Json& number) {
  const Decimal d = decimal(number);
  const Expr text = Digits(x).exactly(d);
  return x.group(Unit::kNumber, d.negative ? x.concat(x.byte('-'), text) : text);
}

Expr number_expression(Expressions& x, const Json& schema, bool integer) {
  Digits digits(x);
  const std::vector<Bound> lows = bounds(schema, "minimum", "exclusiveMinimum");
  const std::vector<Bound> highs = bounds(schema, "maximum", "exclusiveMaximum");
  const Expr sign = x.alt({kEmptyText, x.byte('-')});
  if (lows.empty() && highs.empty() && !schema.contains("multipleOf") && !x.canonical) {
    if (integer) return x.group(Unit::kNumber, x.concat(sign, digits.integers()));
    ByteSet e, signs, decimal_digits;
    e.set('e').set('E');
    signs.set('+').set('-');
    for (char c = '0'; c <= '9'; c++) decimal_digits.set(size_t(c));
    const Expr exponent =
        x.concat({x.bytes(e), x.alt({kEmptyText, x.bytes(signs)}), x.repeat(x.bytes(decimal_digits), 1, kUnbounded)});
    return x.group(Unit::kNumber, x.concat({sign, digits.all(), x.alt({kEmptyText, exponent})}));
  }
  const Decimal zero{.digits = "0"};
  std::vector<Expr> above{digits.all()}, below{digits.at_least(zero, true)};  // magnitudes: of 0 and more, of less
  for (const auto* side : {&lows, &highs}) {
    const bool low = side == &lows;
    for (const Bound& b : *side) {
      if (b.value.zero()) {
        if (low) below.push_back(kNothing);
        if (low && b.strict) above.push_back(digits.at_least(zero, true));
        if (!low) above.push_back(b.strict ? kNothing : digits.exactly(zero));
      } else if (b.value.negative) {
        below.push_back(low ? digits.at_most(b.value, b.strict) : digits.at_least(b.value, b.strict));
        if (!low) above.push_back(kNothing);
      } else {
        above.push_back(low ? digits.at_least(b.value, b.strict) : digits.at_most(b.value, b.strict));
        if (low) below.push_back(kNothing);
      }
    }
  }
  if (integer) above.push_back(digits.integers()), below.push_back(digits.integers());
  Expr all = x.alt({x.both(above), x.concat(x.byte('-'), x.both(below))});
  if (schema.contains("multipleOf")) {
    const auto [value, decimals] = divisor(schema["multipleOf"]);
    all = x.both({all, x.multiple(value, decimals)});
  }
  return x.group(Unit::kNumber, all);
}

}  // namespace octet::guides
