#include "chat/guide_masks.h"

#include <algorithm>

namespace octet::guides {
namespace {

constexpr size_t kMaxMasks = 64;               // kept whole
constexpr int64_t kMaxHeadBytes = 32ll << 20;  // of kept heads
constexpr int64_t kMaxBeyond = 20'000;         // tokens in a trie of last parts

constexpr int kMaxReach = 6;          // of within_reach(), in depth: a character begun, then the count
constexpr int32_t kSmallSubtree = 4;  // nodes; smaller ones are walked

void set(std::vector<uint32_t>& bits, int32_t token) { bits[size_t(token / 32)] |= 1u << (token % 32); }

}  // namespace

const std::vector<uint32_t>& Masks::mask(Expr state) {
  if (const auto found = masks_.find(state); found != masks_.end()) return found->second;
  if (masks_.size() >= kMaxMasks) masks_.clear();
  if (head_bytes_ > kMaxHeadBytes) heads_ = {}, head_bytes_ = 0;
  std::vector<uint32_t> bits(static_cast<size_t>(trie_->words()), 0u);
  add(state, bits);
  return masks_.emplace(state, std::move(bits)).first->second;
}

int64_t Masks::bytes() const {
  return head_bytes_ + int64_t(masks_.size()) * trie_->words() * 4 + int64_t(loops_.size()) * 100;
}

void Masks::forget() {
  masks_.clear();
  loops_.clear();
  heads_ = {}, head_bytes_ = 0;
}

void Masks::add(Expr state, std::vector<uint32_t>& out) {
  for (;;) {
    const Node n = x_.node(state);
    const Expr first = n.kind == Kind::kConcat ? n.a : state;
    const Expr rest = n.kind == Kind::kConcat ? n.b : kEmptyText;
    if (state == kNothing || state == kEmptyText || !x_.alive(state)) return;
    if (x_.node(first).kind == Kind::kAlt && (x_.node(first).unit == Unit::kNone)) {
      const std::vector<Expr> parts(x_.list(first).begin(), x_.list(first).end());
      for (const Expr part : parts) add(x_.concat(part, rest), out);
      return;
    }
    const Head& found = head(first, rest == kEmptyText && x_.nullable(first));
    if (found.plain != nullptr)
      for (size_t i = 0; i < out.size(); i++) out[i] |= (*found.plain)[i];
    if (!found.bits.empty())
      for (size_t i = 0; i < out.size(); i++) out[i] |= found.bits[i];
    for (const int32_t token : found.tokens) set(out, token);
    if (rest == kEmptyText) return;
    if (!found.beyond.nodes.empty()) add_beyond(found.beyond, 0, rest, out);
    for (const int32_t node : found.ends) add_beyond(*found.ends_in, node, rest, out);
    if (!x_.nullable(first)) return;
    state = rest;
  }
}

void Masks::add_beyond(const Trie& trie, int32_t node, Expr state, std::vector<uint32_t>& out) {
  Found found;
  walk(trie, node, state, false, found);
  for (const int32_t token : found.tokens) set(out, token);
}

const Masks::Head& Masks::head(Expr e, bool last) {
  Node n = x_.node(e);
  const Trie* trie = &trie_->all();
  Head made;
  if (n.kind == Kind::kString) {
    // No token reaches a bound that is farther than its own length.
    const int32_t longest = int32_t(trie_->longest_token());
    if (n.b > longest || n.c > longest)
      e = x_.string_rest(std::min(n.b, longest + 1), n.c > longest ? kUnbounded : n.c, n.d != 0);
    n = x_.node(e);
    made.plain = &trie_->plain(n.c == kUnbounded ? trie_->longest_plain() : n.c);
    trie = &trie_->other();
  }
  if (x_.string_without_words(e)) {  // only tokens with a quote can end as one of the words
    made.plain = &trie_->plain(trie_->longest_plain());
    trie = &trie_->other();
  }
  auto& heads = heads_[last];
  if (const auto known = heads.find(e); known != heads.end()) return known->second;
  if (const Expr same = n.kind == Kind::kGroup ? within_reach(e) : e; same != e) return head(same, last);
  Found found;
  walk(*trie, 0, e, !last, found);
  if (int64_t(found.tokens.size()) > trie_->words()) {
    made.bits.assign(static_cast<size_t>(trie_->words()), 0u);
    for (const int32_t token : found.tokens) set(made.bits, token);
  } else {
    made.tokens = std::move(found.tokens);
  }
  int64_t beyond = 0;
  const auto own_end = [&](int32_t node) {
    return trie->nodes[size_t(node)].first_token + trie->nodes[size_t(node)].token_count;
  };
  for (const int32_t node : found.ends) beyond += trie->last_token(node) - own_end(node);
  if (beyond > 0 && beyond <= kMaxBeyond) {
    std::vector<std::pair<std::string_view, int32_t>> parts;
    for (const int32_t node : found.ends) {
      const size_t depth = size_t(trie->nodes[size_t(node)].depth);
      for (int32_t i = own_end(node); i < trie->last_token(node); i++)
        parts.emplace_back(trie_->bytes(trie->tokens[size_t(i)]).substr(depth), trie->tokens[size_t(i)]);
    }
    made.beyond = make_trie(std::move(parts));
  } else if (beyond > 0) {
    made.ends = std::move(found.ends);
    made.ends_in = trie;
  }
  head_bytes_ += int64_t(made.bits.size() * 4 + made.tokens.size() * 4 + made.ends.size() * 4 + 200 +
                         made.beyond.nodes.size() * sizeof(Trie::Node) + made.beyond.tokens.size() * 4);
  return heads.emplace(e, std::move(made)).first->second;
}

// The same to every token: none reaches a count that is farther than its own length.
Expr Masks::within_reach(Expr e, int depth) {
  const Node n = x_.node(e);
  const int32_t longest = int32_t(trie_->longest_token());
  if (depth == kMaxReach) return e;
  const auto part = [&](Expr child) { return within_reach(child, depth + 1); };
  if (n.kind == Kind::kGroup) return x_.group(n.unit, part(n.a));
  if (n.kind == Kind::kConcat) return x_.concat(part(n.a), part(n.b));
  if (n.kind == Kind::kRepeat) return x_.repeat(n.a, std::min(n.b, longest + 1), n.c > longest ? kUnbounded : n.c);
  if (n.kind != Kind::kAnd) return e;
  std::vector<Expr> items(x_.list(e).begin(), x_.list(e).end());
  std::ranges::transform(items, items.begin(), part);
  return x_.both(std::move(items));
}

const std::array<uint64_t, 4>& Masks::loops(Expr state) {
  const auto [found, added] = loops_.try_emplace(state);
  if (added)
    for (size_t b = 0; b < 256; b++)
      if (x_.step(state, uint8_t(b)) == state) found->second[b / 64] |= uint64_t(1) << (b % 64);
  return found->second;
}

void Masks::walk(const Trie& trie, int32_t from, Expr state, bool with_ends, Found& found) {
  struct Level {
    int32_t end;
    Expr state;
  };
  std::vector<Level> path{{trie.nodes[size_t(from)].end, state}};
  int64_t steps = 0;
  for (int32_t i = from + 1; i < path[0].end; steps++) {
    const Trie::Node& node = trie.nodes[size_t(i)];
    while (i >= path.back().end) path.pop_back();
    const Expr next = x_.step(path.back().state, node.byte);
    if (next == kNothing) {
      i = node.end;
      continue;
    }
    if (next == path.back().state && node.end > i + kSmallSubtree && !(with_ends && x_.nullable(next))) {
      const std::array<uint64_t, 4>& loop = loops(next);
      if (((node.below[0] & ~loop[0]) | (node.below[1] & ~loop[1]) | (node.below[2] & ~loop[2]) |
           (node.below[3] & ~loop[3])) == 0) {
        found.tokens.insert(found.tokens.end(), trie.tokens.begin() + node.first_token,
                            trie.tokens.begin() + trie.last_token(i));
        i = node.end;
        continue;
      }
    }
    found.tokens.insert(found.tokens.end(), trie.tokens.begin() + node.first_token,
                        trie.tokens.begin() + node.first_token + node.token_count);
    if (node.end > i + 1) {
      if (with_ends && x_.nullable(next)) found.ends.push_back(i);
      path.push_back({node.end, next});
    }
    i++;
  }
  x_.count_work(steps);
}

}  // namespace octet::guides
