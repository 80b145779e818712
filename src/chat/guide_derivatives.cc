// Derivatives: what may follow a byte; and the search for dead ends that intersections bring.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "chat/guide_expressions.h"
#include "chat/token_trie.h"

namespace octet::guides {
namespace {

constexpr int kMaxDepth = 500;             // of nested derivatives; deeper is an error
constexpr int kMaxSearchDepth = 150;       // of the search for an end; deeper counts as alive
constexpr int64_t kMaxSearchSteps = 600;   // of one search; more counts as alive
constexpr int64_t kMaxSearchWork = 4'000;  // and of the derivatives it makes
constexpr int64_t kRowStates = 4;          // what a row of derivatives counts as, against the limit of states

struct Deeper {
  int& depth;
  explicit Deeper(int& d) : depth(d) {
    depth++;
    check(depth <= kMaxDepth, ErrorCode::kInvalidArgument, "guide: rules nest deeper than {} without a byte between",
          kMaxDepth);
  }
  ~Deeper() { depth--; }
};

}  // namespace

Expr Expressions::body(Expr e) {
  const Node n = node(e);
  if (n.kind == Kind::kRule && rules_[size_t(n.a)].body >= 0) return rules_[size_t(n.a)].body;
  if (const auto found = bodies_.find(e); found != bodies_.end()) return found->second;
  const Expr made = n.kind == Kind::kRule    ? source->rule_body(n.a)
                    : n.kind == Kind::kArray ? source->array_body(n)
                                             : source->object_body(e);
  bodies_.emplace(e, made);
  return made;
}

Expr Expressions::derive(Expr e, uint8_t b) {
  const Node& n = nodes_[size_t(e)];
  switch (n.kind) {
    case Kind::kNothing:
    case Kind::kEmptyText: return kNothing;
    case Kind::kBytes: return sets_[size_t(n.a)][b] ? kEmptyText : kNothing;
    case Kind::kConcat: return derive_concat(e, b);
    default: break;
  }
  int32_t row = row_[size_t(e)];
  if (row >= 0 && rows_[size_t(row)][b] >= 0) return rows_[size_t(row)][b];
  const Expr next = compute(e, b);
  row = row_[size_t(e)];
  if (row < 0) {
    row = row_[size_t(e)] = int32_t(rows_.size());
    rows_.emplace_back().fill(-1);
    memory_ += kRowStates;
  }
  rows_[size_t(row)][b] = next;
  return next;
}

Expr Expressions::derive_concat(Expr e, uint8_t b) {
  std::vector<Expr> parts;
  Expr only = kNothing;
  const auto add = [&](Expr part) {
    if (part == kNothing || part == only) return;
    if (only == kNothing) {
      only = part;
    } else {
      parts.push_back(part);
    }
  };
  for (;;) {
    count_work(1);
    const Node n = node(e);
    if (n.kind != Kind::kConcat) {
      add(derive(e, b));
      break;
    }
    const Expr head = derive(n.a, b);
    if (head != kNothing) add(concat(head, n.b));
    if (!nullable(n.a)) break;
    e = n.b;
  }
  if (parts.empty()) return only;
  parts.push_back(only);
  return alt(parts);
}

Expr Expressions::compute(Expr e, uint8_t b) {
  const Deeper deeper(depth_);
  count_work(2);
  const Node n = node(e);
  switch (n.kind) {
    case Kind::kWords: {
      const std::vector<std::string>& words = word_lists_[size_t(n.a)];
      const size_t at = size_t(n.d);
      const auto below = [at](const std::string& word, uint8_t byte) {
        return word.size() <= at || uint8_t(word[at]) < byte;
      };
      const auto above = [at](uint8_t byte, const std::string& word) {
        return word.size() > at && byte < uint8_t(word[at]);
      };
      const auto low = std::lower_bound(words.begin() + n.b, words.begin() + n.c, b, below);
      const auto high = std::upper_bound(low, words.begin() + n.c, b, above);
      if (low == high) return kNothing;
      if (high - low == 1 && low->size() == at + 1) return kEmptyText;
      Node next = n;
      next.nullable = low->size() == at + 1;
      next.b = int32_t(low - words.begin()), next.c = int32_t(high - words.begin()), next.d = n.d + 1;
      return make(next);
    }
    case Kind::kAlt:
    case Kind::kAnd:
    case Kind::kOne: {
      if (n.unit == Unit::kObject) return derive(body(e), b);
      std::vector<Expr> items(list(e).begin(), list(e).end());
      count_work(int64_t(items.size()));
      for (Expr& item : items) {
        const Node child = node(item);
        item = child.kind == Kind::kNot ? complement(derive(child.a, b)) : derive(item, b);
        if (item == kNothing && n.kind == Kind::kAnd) return kNothing;
      }
      return n.kind == Kind::kAlt ? alt(items) : n.kind == Kind::kAnd ? both(std::move(items)) : one(std::move(items));
    }
    case Kind::kNot: return complement(derive(n.a, b));
    case Kind::kRepeat: {
      const Expr first = derive(n.a, b);
      if (first == kNothing) return kNothing;
      return concat(first, repeat(n.a, std::max(n.b - 1, 0), n.c == kUnbounded ? kUnbounded : n.c - 1));
    }
    case Kind::kGroup: return group(n.unit, derive(n.a, b));
    case Kind::kString: return derive_string(n, b);
    case Kind::kMultiple: return derive_multiple(n, b);
    case Kind::kUntil: return derive_until(n, b);
    case Kind::kNames: return source->name_step(n, b);
    default: return derive(body(e), b);
  }
}

Expr Expressions::derive_string(const Node& n, uint8_t b) {
  if (b == '"') return n.b == 0 ? kEmptyText : kNothing;
  if (n.c == 0) return kNothing;
  const Expr rest = string_byte_[size_t(n.d)][b];
  if (rest == kNothing) return kNothing;
  return concat(rest, string_rest(std::max(n.b - 1, 0), n.c == kUnbounded ? kUnbounded : n.c - 1, n.d != 0));
}

Expr Expressions::multiple(uint64_t divisor, int32_t decimals) {
  const std::pair<uint64_t, int32_t> key(divisor, decimals);
  auto found = std::find(divisors_.begin(), divisors_.end(), key);
  if (found == divisors_.end()) found = divisors_.insert(found, key);
  return make({.kind = Kind::kMultiple, .nullable = true, .a = int32_t(found - divisors_.begin()), .c = -1});
}

Expr Expressions::derive_multiple(const Node& n, uint8_t b) {
  const auto [divisor, decimals] = divisors_[size_t(n.a)];
  Node next = n;
  if (b == '.') {
    if (n.c >= 0) return kNothing;
    next.c = 0;
  } else if (b >= '0' && b <= '9' && n.c < decimals) {
    next.b = int32_t((uint64_t(n.b) * 10 + (b - '0')) % divisor);
    if (n.c >= 0) next.c++;
  } else if (b != '-' && b != '0') {
    return kNothing;
  }
  uint64_t scaled = uint64_t(next.b);
  for (int i = std::max(next.c, 0); i < decimals; i++) scaled = scaled * 10 % divisor;
  next.nullable = scaled == 0;
  return make(next);
}

Expr Expressions::until(std::vector<std::string> ends, std::vector<std::string> never) {
  const auto same = [&](const Until& u) { return u.ends == ends && u.never == never; };
  auto found = std::find_if(untils_.begin(), untils_.end(), same);
  if (found == untils_.end()) {
    Until made{ends, never, {""}};
    for (const auto* tags : {&ends, &never})
      for (const std::string& tag : *tags)
        for (size_t size = 1; size < tag.size(); size++) made.prefixes.push_back(tag.substr(0, size));
    found = untils_.insert(found, std::move(made));
  }
  const int32_t index = int32_t(found - untils_.begin());
  return make({.kind = Kind::kUntil, .unit = Unit::kText, .nullable = ends.empty(), .a = index});
}

Expr Expressions::derive_until(const Node& n, uint8_t b) {
  const Until& u = untils_[size_t(n.a)];
  std::string read = u.prefixes[size_t(n.b)] + char(b);
  const auto done = [&](const std::string& tag) { return read.ends_with(tag); };
  if (std::ranges::any_of(u.ends, done)) return kEmptyText;
  if (std::ranges::any_of(u.never, done)) return kNothing;
  const bool special = read.find(kSpecialByte) != read.npos;
  while (std::ranges::find(u.prefixes, read) == u.prefixes.end()) read.erase(0, 1);
  if (special && read.find(kSpecialByte) == read.npos) return kNothing;
  Node next = n;
  next.b = int32_t(std::ranges::find(u.prefixes, read) - u.prefixes.begin());
  return make(next);
}

bool Expressions::matches(Expr e, std::string_view text) {
  for (const char c : text) {
    e = derive(e, uint8_t(c));
    if (e == kNothing) return false;
  }
  return nullable(e);
}

ByteSet Expressions::first(Expr e) {
  const Deeper deeper(depth_);
  ByteSet set;
  for (; node(e).kind == Kind::kConcat; e = node(e).b) {
    set |= first(node(e).a);
    if (!nullable(node(e).a)) return set;
  }
  const Node n = node(e);
  switch (n.kind) {
    case Kind::kNothing:
    case Kind::kEmptyText: return set;
    case Kind::kBytes: return set | sets_[size_t(n.a)];
    case Kind::kRepeat:
    case Kind::kGroup: return set | first(n.a);
    case Kind::kAlt:
    case Kind::kOne:
    case Kind::kAnd: {
      if (n.unit == Unit::kObject) return set | first(body(e));
      ByteSet joined = n.kind == Kind::kAnd ? ~ByteSet() : ByteSet();
      const std::vector<Expr> items(list(e).begin(), list(e).end());
      for (const Expr item : items) {
        if (n.kind != Kind::kAnd)
          joined |= first(item);
        else if (node(item).kind != Kind::kNot)
          joined &= first(item);
      }
      return set | joined;
    }
    case Kind::kRule:
    case Kind::kObject:
    case Kind::kArray: return set | first(body(e));
    case Kind::kWords:
    case Kind::kNames:
      for (int32_t i = n.b; i < n.c; i++) {
        const std::string& word = word_lists_[size_t(n.kind == Kind::kWords ? n.a : source->names_of(n.a))][size_t(i)];
        if (word.size() > size_t(n.d)) set.set(uint8_t(word[size_t(n.d)]));
      }
      return set;
    case Kind::kMultiple:
      for (const char c : std::string_view("-.0123456789")) set.set(uint8_t(c));
      return set;
    default: return ~ByteSet();
  }
}

bool Expressions::alive(Expr e) {
  if (searching_) return alive_[size_t(e)] != kDead;  // asked by a maker inside of a search: left to that search
  std::vector<Expr> chain;
  for (; node(e).kind == Kind::kConcat && alive_[size_t(e)] == kUnknown; e = node(e).b) chain.push_back(e);
  bool all = alive_alone(e);
  for (; !chain.empty(); chain.pop_back()) {
    all = all && alive_alone(node(chain.back()).a);
    alive_[size_t(chain.back())] = all ? kAlive : kDead;
  }
  return all;
}

bool Expressions::alive_alone(Expr e) {
  if (alive_[size_t(e)] != kUnknown) return alive_[size_t(e)] == kAlive;
  searching_ = true;
  search_left_ = kMaxSearchSteps;
  search_work_ = work_ + kMaxSearchWork;
  bool found = false;
  do {  // a pass may fail where a node waited for another that was found later: until a pass finds nothing new
    search_found_ = false;
    found = search(e, 0);
    for (const Expr other : searched_)
      if (alive_[size_t(other)] == kSearched) alive_[size_t(other)] = found || search_found_ ? kUnknown : kDead;
    searched_.clear();
  } while (!found && search_found_);
  searching_ = false;
  alive_[size_t(e)] = found ? kAlive : kDead;
  return found;
}

// Whether e holds any text, depth first; what is under way or failed in this pass counts as empty.
bool Expressions::search(Expr e, int depth) {
  if (alive_[size_t(e)] != kUnknown) return alive_[size_t(e)] == kAlive;
  const Node n = node(e);
  bool found = n.nullable || depth > kMaxSearchDepth || search_left_ <= 0 || work_ > search_work_;
  if (!found) {
    alive_[size_t(e)] = kSearched;
    searched_.push_back(e);
    search_left_--;
    found = search_parts(e, depth + 1);
  }
  if (found) alive_[size_t(e)] = kAlive, search_found_ = true;
  return found;
}

bool Expressions::search_parts(Expr e, int depth) {
  const Node n = node(e);
  switch (n.kind) {
    case Kind::kConcat: {  // the tail first: it is shared, so it is often known
      std::vector<Expr> chain;
      Expr tail = n.b;
      for (; node(tail).kind == Kind::kConcat && alive_[size_t(tail)] == kUnknown; tail = node(tail).b)
        chain.push_back(tail);
      if (!search(tail, depth)) return false;
      for (; !chain.empty(); chain.pop_back()) {
        if (!search(node(chain.back()).a, depth)) return false;
        alive_[size_t(chain.back())] = kAlive;
      }
      return search(n.a, depth);
    }
    case Kind::kAlt: {
      const std::vector<Expr> items(list(e).begin(), list(e).end());
      return std::ranges::any_of(items, [&](Expr item) { return search(item, depth); });
    }
    case Kind::kRepeat:
    case Kind::kGroup: return search(n.a, depth);
    case Kind::kRule: return search(body(e), depth);
    case Kind::kNames:
      for (const bool wanted : {true, false})  // required names lead to the end
        for (int32_t i = n.b; i < n.c; i++)
          if (source->name_wanted(n, i) == wanted && search(source->name_rest(n, i), depth)) return true;
      return false;
    case Kind::kObject:
    case Kind::kArray: {
      const std::vector<Expr> needs = source->needs(n);
      return std::ranges::all_of(needs, [&](Expr need) { return search(need, depth); });
    }
    case Kind::kAnd:
    case Kind::kOne: {
      const ByteSet bytes = first(e);
      constexpr std::string_view kNear = "\"}],:0a1 ";  // bytes that end things: a way to the end is found sooner
      for (const char b : kNear)
        if (bytes[uint8_t(b)] && search_step(e, uint8_t(b), depth)) return true;
      for (int b = 0; b < 256; b++)
        if (bytes[size_t(b)] && kNear.find(char(b)) == kNear.npos && search_step(e, uint8_t(b), depth)) return true;
      return false;
    }
    default: return true;
  }
}

bool Expressions::search_step(Expr e, uint8_t b, int depth) {
  if (search_left_ <= 0 || work_ > search_work_) return true;
  const Expr next = derive(e, b);
  return next != kNothing && search(next, depth);
}

}  // namespace octet::guides
