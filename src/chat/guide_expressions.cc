// Making of expressions: hash-consing and the rules that keep equal sets of texts equal numbers.
#include "chat/guide_expressions.h"

#include <algorithm>

#include "base/error.h"

namespace octet::guides {
namespace {

constexpr size_t kMaxTerms = 64;  // of an intersection that is multiplied out

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

uint64_t hash_of(const Node& n, std::span<const Expr> list) {
  uint64_t hash = mixed(uint64_t(n.kind) << 8 | uint64_t(n.unit), 1);
  if (list.empty())
    hash = mixed(mixed(hash, uint64_t(uint32_t(n.a)) << 32 | uint32_t(n.b)),
                 uint64_t(uint32_t(n.c)) << 32 | uint32_t(n.d));
  for (const Expr e : list) hash = mixed(hash, uint64_t(e));
  return hash;
}

void sort_unique(std::vector<Expr>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

bool has(const std::vector<Expr>& list, Expr e) { return std::find(list.begin(), list.end(), e) != list.end(); }

}  // namespace

Expressions::Expressions(const GuideLimits& limits) : limits_(limits), table_(1024, -1) {
  intern({.kind = Kind::kNothing}, {});
  intern({.kind = Kind::kEmptyText, .nullable = true}, {});
  alive_[kNothing] = kDead;
  alive_[kEmptyText] = kAlive;
}

void Expressions::count_work(int64_t steps) {
  work_ += steps;
  check(work_ <= limits_.steps, ErrorCode::kInvalidArgument,
        "guide: one token needs more than {} steps: simplify the schema or grammar, or raise the limit `steps`",
        limits_.steps);
}

std::span<const Expr> Expressions::list(Expr e) const {
  const Node& n = node(e);
  return {pool_.data() + n.a, size_t(n.b)};
}

Expr Expressions::intern(const Node& n, std::span<const Expr> items) {
  const bool is_list = n.kind == Kind::kAlt || n.kind == Kind::kAnd || n.kind == Kind::kOne;
  uint64_t slot = hash_of(n, items);
  for (;; slot++) {
    const Expr e = table_[slot & (table_.size() - 1)];
    if (e < 0) break;
    const Node& other = node(e);
    if (is_list ? other.kind == n.kind && std::ranges::equal(list(e), items) : other == n) return e;
  }
  memory_++;
  check(memory_ <= limits_.states, ErrorCode::kInvalidArgument,
        "guide: its automaton needs more than {} states: simplify the schema or grammar, or raise the limit `states`",
        limits_.states);
  const Expr made = Expr(nodes_.size());
  nodes_.push_back(n);
  if (is_list) {
    nodes_.back().a = int32_t(pool_.size());
    nodes_.back().b = int32_t(items.size());
    pool_.insert(pool_.end(), items.begin(), items.end());
    memory_ += int64_t(items.size() / 8);
  }
  row_.push_back(-1);
  alive_.push_back(kUnknown);
  table_[slot & (table_.size() - 1)] = made;
  if (nodes_.size() * 2 > table_.size()) {
    table_.assign(table_.size() * 2, -1);
    for (Expr e = 0; e < Expr(nodes_.size()); e++) {
      const Node& old = node(e);
      const bool old_list = old.kind == Kind::kAlt || old.kind == Kind::kAnd || old.kind == Kind::kOne;
      uint64_t place = hash_of(old, old_list ? list(e) : std::span<const Expr>());
      while (table_[place & (table_.size() - 1)] >= 0) place++;
      table_[place & (table_.size() - 1)] = e;
    }
  }
  return made;
}

Expr Expressions::make(const Node& n) { return intern(n, {}); }

Expr Expressions::bytes(const ByteSet& set) {
  if (set.none()) return kNothing;
  const auto [found, added] = set_index_.try_emplace(set, int32_t(sets_.size()));
  if (added) sets_.push_back(set);
  return make({.kind = Kind::kBytes, .a = found->second});
}

Expr Expressions::byte(uint8_t b) { return bytes(ByteSet().set(b)); }

Expr Expressions::text(std::string_view text) { return words({std::string(text)}); }

Expr Expressions::words(std::vector<std::string> list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  if (list.empty()) return kNothing;
  if (list.size() == 1 && list[0].empty()) return kEmptyText;
  const bool nullable = list[0].empty();
  const int32_t count = int32_t(list.size());
  const auto [found, added] = word_index_.try_emplace(list, int32_t(word_lists_.size()));
  if (added) word_lists_.push_back(std::move(list));
  return make({.kind = Kind::kWords, .nullable = nullable, .a = found->second, .c = count});
}

Expr Expressions::concat(Expr a, Expr b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kEmptyText) return b;
  if (b == kEmptyText) return a;
  std::vector<Expr> spine;
  while (node(a).kind == Kind::kConcat) spine.push_back(node(a).a), a = node(a).b;
  spine.push_back(a);
  while (!spine.empty()) {
    const Expr head = spine.back();
    spine.pop_back();
    b = make({.kind = Kind::kConcat,
              .nullable = nullable(head) && nullable(b),
              .structural = node(head).structural || node(b).structural,
              .a = head,
              .b = b});
  }
  return b;
}

Expr Expressions::concat(std::initializer_list<Expr> parts) {
  Expr all = kEmptyText;
  for (auto part = std::rbegin(parts); part != std::rend(parts); ++part) all = concat(*part, all);
  return all;
}

Expr Expressions::list_node(Kind kind, std::vector<Expr> items) {
  sort_unique(items);
  Node n{.kind = kind, .nullable = kind == Kind::kAnd};
  int nullables = 0;
  bool same = true;
  for (const Expr item : items) {
    const Node& child = node(item);
    const Unit unit = child.kind == Kind::kNot ? node(child.a).unit : child.unit;
    if (item == items[0]) n.unit = unit;
    same = same && unit == n.unit;
    nullables += child.nullable;
    n.structural |= child.structural;
  }
  if (!same) n.unit = Unit::kNone;
  n.nullable = kind == Kind::kAlt   ? nullables > 0
               : kind == Kind::kAnd ? nullables == int(items.size())
                                    : nullables == 1;
  return intern(n, items);
}

Expressions::Factors Expressions::factors(Expr e) const {
  const Node& n = node(e);
  if (n.kind == Kind::kConcat) return {n.a, n.b};
  return {e, kEmptyText};
}

Expr Expressions::alt(const std::vector<Expr>& list) {
  std::vector<Expr> flat;
  ByteSet any;
  for (const Expr e : list) {
    const Node& n = node(e);
    if (n.kind == Kind::kAlt) {
      for (const Expr child : this->list(e)) flat.push_back(child);
    } else if (n.kind == Kind::kBytes) {
      any |= sets_[size_t(n.a)];
    } else if (e != kNothing) {
      flat.push_back(e);
    }
  }
  if (any.any()) flat.push_back(bytes(any));
  sort_unique(flat);
  // u r | u s = u (r | s), for units.
  std::stable_sort(flat.begin(), flat.end(), [&](Expr a, Expr b) { return factors(a).head < factors(b).head; });
  std::vector<Expr> out;
  for (size_t i = 0; i < flat.size();) {
    const Expr head = factors(flat[i]).head;
    size_t end = i + 1;
    while (end < flat.size() && factors(flat[end]).head == head) end++;
    if (end - i > 1 && node(head).unit != Unit::kNone) {
      std::vector<Expr> rests;
      for (; i < end; i++) rests.push_back(factors(flat[i]).rest);
      out.push_back(concat(head, alt(rests)));
    } else {
      out.insert(out.end(), flat.begin() + int64_t(i), flat.begin() + int64_t(end));
    }
    i = end;
  }
  if (out.empty()) return kNothing;
  return out.size() == 1 ? out[0] : list_node(Kind::kAlt, std::move(out));
}

Expr Expressions::complement(Expr a) {
  if (node(a).kind == Kind::kNot) return node(a).a;
  return make({.kind = Kind::kNot, .nullable = !nullable(a), .structural = node(a).structural, .a = a});
}

std::vector<Expr> Expressions::spread(Expr e) {
  const Factors f = factors(e);
  const Node n = node(f.head);
  if (n.kind != Kind::kAlt || n.unit != Unit::kNone || !n.structural) return {e};
  std::vector<Expr> out;
  const std::vector<Expr> children(list(f.head).begin(), list(f.head).end());
  for (const Expr child : children)
    for (const Expr part : spread(concat(child, f.rest))) out.push_back(part);
  return out;
}

bool Expressions::universal(Expr e) const {
  const Node& n = node(e);
  if (n.kind == Kind::kString) return n.b == 0 && n.c == kUnbounded && n.d == 0;
  return source != nullptr && (n.kind == Kind::kObject || n.kind == Kind::kArray || n.kind == Kind::kRule) &&
         source->universal(n);
}

Expr Expressions::both(std::vector<Expr> list) {
  std::vector<Expr> positive, negative;
  for (size_t i = 0; i < list.size(); i++) {
    const Node n = node(list[i]);
    if (n.kind == Kind::kAnd) {
      const std::vector<Expr> children(this->list(list[i]).begin(), this->list(list[i]).end());
      list.insert(list.end(), children.begin(), children.end());
    } else if (n.kind == Kind::kNot && node(n.a).kind == Kind::kAlt) {
      const std::vector<Expr> children(this->list(n.a).begin(), this->list(n.a).end());
      for (const Expr child : children) list.push_back(complement(child));
    } else if (n.kind == Kind::kNot) {
      for (const Expr part : spread(n.a))
        if (part != kNothing) negative.push_back(part);
    } else {
      positive.push_back(list[i]);
    }
  }
  sort_unique(positive);
  sort_unique(negative);
  if (has(positive, kNothing)) return kNothing;
  for (const Expr e : negative)
    if (has(positive, e)) return kNothing;
  if (has(positive, kEmptyText)) {
    const bool all = std::ranges::all_of(positive, [&](Expr e) { return nullable(e); }) &&
                     std::ranges::none_of(negative, [&](Expr e) { return nullable(e); });
    return all ? kEmptyText : kNothing;
  }
  std::erase_if(negative, [](Expr e) { return e == kEmptyText; });  // no positive one holds the empty text, or:
  if (positive.empty() || std::ranges::all_of(positive, [&](Expr e) { return nullable(e); }))
    for (const Expr e : list)
      if (node(e).kind == Kind::kNot && node(e).a == kEmptyText) negative.push_back(kEmptyText);
  if (positive.empty() && negative.empty()) return complement(kNothing);
  if (positive.size() == 1 && negative.empty()) return positive[0];

  for (size_t i = 0; i < positive.size(); i++) {
    const std::vector<Expr> parts = spread(positive[i]);
    if (parts.size() == 1) {
      positive[i] = parts[0];
      continue;
    }
    if (parts.size() * (positive.size() + negative.size()) > kMaxTerms) continue;
    std::vector<Expr> terms;
    for (const Expr part : parts) {
      std::vector<Expr> term{part};
      for (size_t j = 0; j < positive.size(); j++)
        if (j != i) term.push_back(positive[j]);
      for (const Expr e : negative) term.push_back(complement(e));
      terms.push_back(both(std::move(term)));
    }
    return alt(terms);
  }
  const Expr factored = factored_and(positive, negative);
  if (factored >= 0) return factored;
  std::vector<Expr> items = positive;
  for (const Expr e : negative) items.push_back(complement(e));
  return items.size() == 1 ? items[0] : list_node(Kind::kAnd, std::move(items));
}

Expr Expressions::factored_and(const std::vector<Expr>& positive, const std::vector<Expr>& negative) {
  if (positive.empty()) return -1;
  const Unit unit = node(factors(positive[0]).head).unit;
  if (unit == Unit::kNone || unit == Unit::kText) return -1;
  for (const auto* side : {&positive, &negative})
    for (const Expr e : *side)
      if (node(factors(e).head).unit != unit) return -1;
  Factors all = factors(positive[0]);
  std::vector<Expr> rests{all.rest};
  for (size_t i = 1; i < positive.size(); i++) {
    const Factors f = factors(positive[i]);
    all.head = unit_and(all.head, f.head, false);
    rests.push_back(f.rest);
  }
  all.rest = both(rests);
  std::vector<Factors> terms{all};
  for (const Expr e : negative) {
    const Factors f = factors(e);
    std::vector<Factors> next;
    for (const Factors& term : terms) {
      const bool covered = term.head == f.head || universal(f.head);
      if (!covered) next.push_back({unit_and(term.head, f.head, true), term.rest});
      const Expr rest = both({term.rest, complement(f.rest)});
      if (rest != kNothing) next.push_back({covered ? term.head : unit_and(term.head, f.head, false), rest});
    }
    std::erase_if(next, [](const Factors& f) { return f.head == kNothing || f.rest == kNothing; });
    if (next.size() > kMaxTerms) return -1;
    terms = std::move(next);
  }
  std::vector<Expr> out;
  for (const Factors& term : terms) out.push_back(concat(term.head, term.rest));
  return alt(out);
}

Expr Expressions::inside(Expr e) {
  const Node n = node(e);
  if (n.kind == Kind::kGroup) return n.a;
  if (n.kind == Kind::kString) return concat(repeat(json_character(n.d != 0), n.b, n.c), byte('"'));
  if (n.kind == Kind::kEmptyText) return e;
  std::vector<Expr> parts;
  const std::vector<Expr> children(list(e).begin(), list(e).end());
  for (const Expr child : children)
    parts.push_back(node(child).kind == Kind::kNot ? complement(inside(node(child).a)) : inside(child));
  return n.kind == Kind::kAlt ? alt(parts) : n.kind == Kind::kOne ? one(parts) : both(parts);
}

Expr Expressions::unit_and(Expr a, Expr b, bool complement_b) {
  if (a == kNothing) return kNothing;
  if (a == b) return complement_b ? kNothing : a;
  if (universal(b)) return complement_b ? kNothing : a;
  const Node x = node(a), y = node(b);
  if (!complement_b && universal(a)) return b;
  if (x.unit == Unit::kObject || x.unit == Unit::kArray || x.unit == Unit::kValue) {
    std::vector<Expr> items;
    for (const auto& [e, negated] : {std::pair(a, false), std::pair(b, complement_b)}) {
      if (!negated && node(e).kind == Kind::kAnd) {
        items.insert(items.end(), list(e).begin(), list(e).end());
      } else {
        items.push_back(negated ? complement(e) : e);
      }
    }
    sort_unique(items);
    for (const Expr item : items)
      if (node(item).kind == Kind::kNot && has(items, node(item).a)) return kNothing;
    return list_node(Kind::kAnd, std::move(items));
  }
  if (!complement_b && x.kind == Kind::kString && y.kind == Kind::kString) {
    const int32_t most = x.c < 0 ? y.c : y.c < 0 ? x.c : std::min(x.c, y.c);
    return string_rest(std::max(x.b, y.b), most, x.d != 0 || y.d != 0);
  }
  const Expr other = inside(b);
  return group(x.unit, both({inside(a), complement_b ? complement(other) : other}));
}

Expr Expressions::one(std::vector<Expr> list) {
  std::erase(list, kNothing);
  std::sort(list.begin(), list.end());
  std::vector<Expr> single, several;
  for (size_t i = 0; i < list.size();) {
    size_t end = i + 1;
    while (end < list.size() && list[end] == list[i]) end++;
    (end - i == 1 ? single : several).push_back(list[i]);
    i = end;
  }
  if (!several.empty()) {
    std::vector<Expr> parts{one(single)};
    for (const Expr e : several) parts.push_back(complement(e));
    return both(std::move(parts));
  }
  if (single.empty()) return kNothing;
  if (single.size() == 1) return single[0];
  // One unit in front of all, or two of one kind: (u r, v s) = (u - v) r | (v - u) s | (u & v)(r, s).
  const Factors f = factors(single[0]);
  const Unit unit = node(f.head).unit;
  const bool same_head = std::ranges::all_of(single, [&](Expr e) { return factors(e).head == f.head; });
  if (unit != Unit::kNone && same_head) {
    std::vector<Expr> rests;
    for (const Expr e : single) rests.push_back(factors(e).rest);
    return concat(f.head, one(std::move(rests)));
  }
  const Factors g = factors(single[1]);
  if (unit != Unit::kNone && single.size() == 2 && node(g.head).unit == unit &&
      (f.rest != kEmptyText || g.rest != kEmptyText))
    return alt({concat(unit_and(f.head, g.head, true), f.rest), concat(unit_and(g.head, f.head, true), g.rest),
                concat(unit_and(f.head, g.head, false), one({f.rest, g.rest}))});
  return list_node(Kind::kOne, std::move(single));
}

Expr Expressions::repeat(Expr a, int32_t least, int32_t most) {
  if (most == 0 || a == kEmptyText) return kEmptyText;
  if (a == kNothing) return least == 0 ? kEmptyText : kNothing;
  if (nullable(a)) least = 0;
  if (least == 1 && most == 1) return a;
  const Node n = node(a);
  if (n.kind == Kind::kRepeat && n.b == 0 && n.c == kUnbounded) return a;
  return make(
      {.kind = Kind::kRepeat, .nullable = least == 0, .structural = n.structural, .a = a, .b = least, .c = most});
}

Expr Expressions::group(Unit unit, Expr a) {
  if (a == kNothing || a == kEmptyText) return a;
  if (node(a).kind == Kind::kGroup) a = node(a).a;
  if (unit == Unit::kString)
    for (const bool one_spelling : {false, true})
      if (a == any_string_[one_spelling]) return string_rest(0, kUnbounded, one_spelling);
  return make({.kind = Kind::kGroup, .unit = unit, .nullable = nullable(a), .structural = unit != Unit::kText, .a = a});
}

Expr Expressions::string_rest(int32_t least, int32_t most, bool one_spelling) {
  one_spelling = one_spelling && !canonical;
  if (most != kUnbounded && least > most) return kNothing;
  Expr& any = any_string_[one_spelling];
  if (any < 0) {
    any = concat(repeat(json_character(one_spelling), 0, kUnbounded), byte('"'));
    for (int i = 0; i < 256; i++)
      string_byte_[one_spelling][size_t(i)] = derive(json_character(one_spelling), uint8_t(i));
  }
  return make(
      {.kind = Kind::kString, .unit = Unit::kString, .structural = true, .b = least, .c = most, .d = one_spelling});
}

bool Expressions::string_without_words(Expr e) const {
  const Node& n = node(e);
  if (n.kind != Kind::kGroup || n.unit != Unit::kString || node(n.a).kind != Kind::kAnd) return false;
  return std::ranges::all_of(list(n.a), [&](Expr item) {
    return (item == any_string_[0] || item == any_string_[1]) ||
           (node(item).kind == Kind::kNot && node(node(item).a).kind == Kind::kWords);
  });
}

int32_t Expressions::add_rule(Unit unit, bool nullable, Expr body) {
  rules_.push_back({unit, nullable, body});
  return int32_t(rules_.size()) - 1;
}

Expr Expressions::rule(int32_t index) {
  const Rule& r = rules_[size_t(index)];
  return make(
      {.kind = Kind::kRule, .unit = r.unit, .nullable = r.nullable, .structural = r.unit != Unit::kNone, .a = index});
}

}  // namespace octet::guides
