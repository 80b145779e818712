// Expressions over bytes: the one form that regular expressions, grammars and JSON schemas are lowered to.
//
// An expression is a set of texts. The automaton of a guide is made of derivatives: derive(e, b) is the set of what may
// follow byte b in texts of e. Equal expressions have one number, so a derivative is found again instead of made
// again, and a pushdown stack is a chain of concatenations whose tails are shared. Intersection and complement are
// expressions too; with them allOf, not, oneOf and if are what JSON Schema says they are.
//
// Units: parts of a JSON text that end by themselves (the rest of a string, of an object ...) have a unit kind. Two
// units of one kind that stand behind the same text end at the same place in every text that both describe, therefore
// (u r) & (v s) = (u & v)(r & s). Without that rule an intersection of two objects would be walked in pairs of stacks.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "chat/guide.h"

namespace octet::guides {

using Expr = int32_t;
using ByteSet = std::bitset<256>;
constexpr Expr kNothing = 0;    // no text at all
constexpr Expr kEmptyText = 1;  // the text of no bytes
constexpr int32_t kUnbounded = -1;

enum class Kind : uint8_t {
  kNothing,
  kEmptyText,
  kBytes,     // one byte of set a
  kWords,     // words [b, c) of sorted list a, behind their first d bytes
  kConcat,    // a then b; a is no kConcat
  kAlt,       // any of the list
  kAnd,       // all of the list; complements only here
  kOne,       // exactly one of the list
  kNot,       // complement of a
  kRepeat,    // a, from b to c times
  kGroup,     // a, a whole to masks and to the unit rule
  kRule,      // rule a: a named expression, made when first needed
  kString,    // the rest of a JSON string up to its quote: b to c characters; d: 1 in one spelling each
  kMultiple,  // the rest of a number: divisor a (of a list), remainder b, fraction digits c (-1: before the point)
  kNames,     // the rest of a member of object a (an expression) whose name is of its words [b, c), behind d bytes
  kObject,    // the rest of an object in state a; b: a member precedes
  kArray,     // the rest of an array: definition a, b items so far, c of them matching `contains`
  kUntil,     // the rest of a text up to a tag: definition a, behind prefix b of one
};
enum class Unit : uint8_t { kNone, kString, kObject, kArray, kValue, kNumber, kWord, kSeparator, kText };

struct Node {
  Kind kind = Kind::kNothing;
  Unit unit = Unit::kNone;
  bool nullable = false;    // holds the empty text
  bool structural = false;  // holds units, outside of groups
  int32_t a = 0, b = 0, c = 0, d = 0;
  bool operator==(const Node&) const = default;
};

// What the nodes of JSON objects and arrays mean: json_schema.cc.
class NodeSource {
 public:
  virtual ~NodeSource() = default;
  virtual Expr rule_body(int32_t rule) = 0;  // of a rule added without one
  virtual Expr array_body(const Node& node) = 0;
  virtual Expr object_body(Expr e) = 0;                          // e: kObject, or a list of such of one unit
  virtual Expr name_step(const Node& node, uint8_t b) = 0;       // derivative of kNames
  virtual Expr name_rest(const Node& node, int32_t name) = 0;    // what follows a name of kNames
  virtual bool name_wanted(const Node& node, int32_t name) = 0;  // it is required and has not come yet
  virtual int32_t names_of(Expr object) = 0;                     // its list of words
  virtual std::vector<Expr> needs(const Node& node) = 0;         // of kObject, kArray: what must hold texts for it to
  virtual bool universal(const Node& node) const = 0;            // holds all texts of its unit kind
};

class Expressions {
 public:
  explicit Expressions(const GuideLimits& limits);

  // Makers; each returns the simplest equal expression it sees.
  Expr bytes(const ByteSet& set);
  Expr byte(uint8_t b);
  Expr text(std::string_view text);
  Expr words(std::vector<std::string> words);
  Expr concat(Expr a, Expr b);
  Expr concat(std::initializer_list<Expr> parts);
  Expr alt(const std::vector<Expr>& list);
  Expr both(std::vector<Expr> list);  // intersection
  Expr one(std::vector<Expr> list);   // exactly one
  Expr complement(Expr a);
  Expr repeat(Expr a, int32_t least, int32_t most);
  Expr group(Unit unit, Expr a);
  Expr string_rest(int32_t least, int32_t most, bool one_spelling = false);
  Expr multiple(uint64_t divisor, int32_t decimals);
  // A text through the first of `ends`, of any bytes that spell none of `never`; without ends, all of a text. A tag
  // may begin with kSpecialByte, which is nowhere else in the text.
  Expr until(std::vector<std::string> ends, std::vector<std::string> never);
  Expr make(const Node& node);  // any node without a list, as it is
  int32_t add_rule(Unit unit, bool nullable, Expr body = -1);
  Expr rule(int32_t index);
  void set_rule_body(int32_t index, Expr body) { rules_[size_t(index)].body = body; }

  // One character (code points of sorted, disjoint ranges) as UTF-8 or, `json`, as it is written in a JSON string.
  Expr characters(std::span<const std::pair<uint32_t, uint32_t>> ranges, bool json);
  Expr json_character(bool one_spelling);  // any

  const Node& node(Expr e) const { return nodes_[size_t(e)]; }
  std::span<const Expr> list(Expr e) const;
  const std::vector<std::string>& word_list(int32_t index) const { return word_lists_[size_t(index)]; }
  bool nullable(Expr e) const { return nodes_[size_t(e)].nullable; }

  Expr derive(Expr e, uint8_t b);
  // derive() without dead ends: kNothing where no text can follow, as far as a bounded search sees.
  Expr step(Expr e, uint8_t b) {
    const Expr next = derive(e, b);
    return next == kNothing || alive_[size_t(next)] == kAlive || alive(next) ? next : kNothing;
  }
  bool alive(Expr e);
  bool matches(Expr e, std::string_view text);  // the whole of it
  ByteSet first(Expr e);                        // holds every byte a text of e can begin with

  // Whether e is the rest of any string but some words.
  bool string_without_words(Expr e) const;

  void begin_work() { work_ = 0; }  // of one call; count_work() throws when it exceeds the limit
  void count_work(int64_t steps);
  int64_t states() const { return memory_; }  // what counts against the limit of them

  NodeSource* source = nullptr;
  bool canonical = false;  // one spelling a character and number everywhere: set where a schema negates

 private:
  struct Rule {
    Unit unit;
    bool nullable;
    Expr body;
  };
  struct Factors {
    Expr head, rest;
  };
  struct Until {
    std::vector<std::string> ends, never, prefixes;  // prefixes of all tags
  };
  enum : uint8_t { kUnknown, kAlive, kDead, kSearched };
  using Row = std::array<Expr, 256>;

  Expr intern(const Node& node, std::span<const Expr> list);
  Expr list_node(Kind kind, std::vector<Expr> list);
  Factors factors(Expr e) const;
  Expr factored_and(const std::vector<Expr>& positive, const std::vector<Expr>& negative);  // -1: no common unit
  Expr unit_and(Expr a, Expr b, bool complement_b);                                         // of one unit kind
  Expr inside(Expr e);               // of groups and string rests: the expression without its unit
  std::vector<Expr> spread(Expr e);  // the alternatives of e where they are structural
  Expr body(Expr e);
  Expr compute(Expr e, uint8_t b);
  Expr derive_concat(Expr e, uint8_t b);
  Expr derive_string(const Node& node, uint8_t b);
  Expr derive_multiple(const Node& node, uint8_t b);
  Expr derive_until(const Node& node, uint8_t b);
  bool alive_alone(Expr e);
  bool search(Expr e, int depth);
  bool search_parts(Expr e, int depth);
  bool search_step(Expr e, uint8_t b, int depth);
  bool universal(Expr e) const;
  Expr utf8_range(uint32_t low, uint32_t high);

  GuideLimits limits_;
  int64_t work_ = 0;
  int64_t memory_ = 0;
  int depth_ = 0;
  int64_t search_left_ = 0, search_work_ = 0;
  bool searching_ = false;
  bool search_found_ = false;
  std::vector<Expr> searched_;
  std::vector<Node> nodes_;
  std::vector<Expr> pool_;    // lists of list nodes
  std::vector<Expr> table_;   // open addressing over nodes_
  std::vector<int32_t> row_;  // of a node in rows_, -1: none
  std::deque<Row> rows_;
  std::vector<uint8_t> alive_;
  std::unordered_map<Expr, Expr> bodies_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, int32_t> set_index_;
  std::deque<std::vector<std::string>> word_lists_;
  std::map<std::vector<std::string>, int32_t> word_index_;
  std::vector<std::pair<uint64_t, int32_t>> divisors_;  // with decimals
  std::vector<Until> untils_;
  std::vector<Rule> rules_;
  std::array<Expr, 2> json_character_{-1, -1};
  std::array<Expr, 2> any_string_{-1, -1};  // the insides of string_rest(0, kUnbounded)
  // What completes a character of a string that begins with a byte; kNothing: none does.
  std::array<std::array<Expr, 256>, 2> string_byte_{};
};

}  // namespace octet::guides
