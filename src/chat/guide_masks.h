// Masks of a vocabulary: which tokens may follow, for each state of one guide.
//
// A state is a chain of concatenations. Tokens that end inside of its head depend on the head alone, and heads recur
// (the inside of a string, the begin of a number): their masks are kept. Tokens that go beyond a head are kept as a
// trie of their last parts, which is walked under the rest of the chain.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>

#include "chat/guide_expressions.h"
#include "chat/token_trie.h"

namespace octet::guides {

class Masks {
 public:
  Masks(Expressions& expressions, std::shared_ptr<const TokenTrie> trie) : x_(expressions), trie_(std::move(trie)) {}

  const TokenTrie* trie() const { return trie_.get(); }
  // The tokens that may follow; valid until the next call.
  const std::vector<uint32_t>& mask(Expr state);
  int64_t bytes() const;  // kept, about
  void forget();          // what is kept

 private:
  struct Head {
    const std::vector<uint32_t>* plain = nullptr;  // of the trie
    std::vector<uint32_t> bits;                    // of many tokens
    std::vector<int32_t> tokens;                   // few
    Trie beyond;                                   // what tokens hold behind the end of this head
    std::vector<int32_t> ends;                     // or, where that is too much: nodes at which the head may end,
    const Trie* ends_in = nullptr;                 // of this trie
  };
  struct Found {
    std::vector<int32_t> tokens;
    std::vector<int32_t> ends;
  };

  void add(Expr state, std::vector<uint32_t>& out);
  void add_beyond(const Trie& trie, int32_t node, Expr state, std::vector<uint32_t>& out);
  const Head& head(Expr e, bool last);  // `last`: nothing follows it
  Expr within_reach(Expr e, int depth = 0);
  const std::array<uint64_t, 4>& loops(Expr state);
  void walk(const Trie& trie, int32_t from, Expr state, bool with_ends, Found& found);

  Expressions& x_;
  std::shared_ptr<const TokenTrie> trie_;
  std::array<std::unordered_map<Expr, Head>, 2> heads_;  // of heads that something follows, of last ones
  std::unordered_map<Expr, std::vector<uint32_t>> masks_;
  std::unordered_map<Expr, std::array<uint64_t, 4>> loops_;  // the bytes that lead from a state to itself
  int64_t head_bytes_ = 0;
};

}  // namespace octet::guides
