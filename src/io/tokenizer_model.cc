// See tokenizer_model.h. Words of text are short, so a linear scan for the best pair is fastest; a heap over a linked
// list is used for long runs (base64, SentencePiece without pre-tokenisation), where the scan would be quadratic.
#include "io/tokenizer_model.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

constexpr size_t kScanLimit = 48;  // symbols; bpe_bench: scan and heap are equally fast near 50

void merge_by_scan(const MergeTable& table, std::vector<int32_t>& symbols, std::vector<MergeTable::Merge>& merges) {
  size_t count = symbols.size();
  merges.resize(count);
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = table.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == MergeTable::kNoRank) break;
    symbols[best] = merges[best].id;
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    std::copy(merges.begin() + best + 2, merges.begin() + count, merges.begin() + best + 1);
    --count;
    if (best > 0) merges[best - 1] = table.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = table.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

void merge_by_heap(const MergeTable& table, std::vector<int32_t>& symbols, MergeScratch& scratch) {
  const auto count = static_cast<int32_t>(symbols.size());
  auto& merges = scratch.merges;
  auto &previous = scratch.previous, &next = scratch.next;
  auto& heap = scratch.heap;
  merges.assign(symbols.size(), {});
  previous.resize(symbols.size());
  next.resize(symbols.size());
  heap.clear();
  const auto rank_pair = [&](int32_t at) {
    merges[at] = next[at] < count ? table.find(symbols[at], symbols[next[at]]) : MergeTable::Merge{};
    if (merges[at].rank == MergeTable::kNoRank) return;
    heap.emplace_back(merges[at].rank, static_cast<uint32_t>(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < count; ++i) previous[i] = i - 1, next[i] = i + 1;
  for (int32_t i = 0; i < count; ++i) rank_pair(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto [rank, position] = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(position);
    if (merges[at].rank != rank) continue;  // the pair changed since this entry was pushed
    const int32_t right = next[at];
    symbols[at] = merges[at].id;
    merges[right] = {};
    symbols[right] = -1;
    next[at] = next[right];
    if (next[at] < count) previous[next[at]] = at;
    rank_pair(at);
    if (previous[at] >= 0) rank_pair(previous[at]);
  }
  std::erase(symbols, -1);
}

}  // namespace

MergeTable::MergeTable(size_t expected) { grow(std::bit_ceil(std::max<size_t>(16, expected * 2))); }

void MergeTable::grow(size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  size_ = 0;
  for (const Slot& slot : old) {
    if (slot.key != kEmpty) insert(static_cast<int32_t>(slot.key >> 32), static_cast<int32_t>(slot.key), slot.merge);
  }
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  if ((size_ + 1) * 2 > slots_.size()) grow(slots_.size() * 2);
  const uint64_t key = make_key(left, right);
  size_t slot = hash(key) >> shift_;
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & mask_;
  if (slots_[slot].key == kEmpty) ++size_;
  slots_[slot] = {key, merge};
}

void apply_merges(const MergeTable& table, std::vector<int32_t>& symbols, MergeScratch& scratch) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kScanLimit) {
    merge_by_scan(table, symbols, scratch.merges);
  } else {
    merge_by_heap(table, symbols, scratch);
  }
}
namespace {

size_t character_length(std::string_view text, size_t at) {
  return static_cast<size_t>(std::max(1, utf8_at(text, at).length));  // an invalid byte is a symbol of its own
}

// The token for uncovered text; -1: the text is dropped.
int32_t token_for_unknown(std::string_view text, int32_t unk_id, UnknownText& unknown) {
  if (unknown.refuse(unk_id)) {
    fail(ErrorCode::kInvalidArgument, "the vocabulary has no token for {}{}: text with it cannot be encoded",
         shown_with_bytes(text), unk_id < 0 ? " and no unknown token" : "");
  }
  return unknown.meet(text, unk_id);
}

}  // namespace

void UnknownRule::encode(std::string_view text, UnknownText& unknown, bool& unknown_before,
                         std::vector<int32_t>& out) const {
  const auto id_of = [&](char c) { return byte_ids[static_cast<uint8_t>(c)]; };
  if (std::all_of(text.begin(), text.end(), [&](char c) { return id_of(c) >= 0; })) {
    for (char c : text) out.push_back(id_of(c));
    unknown_before = false;
  } else if (const int32_t id = token_for_unknown(text, unk_id, unknown); id >= 0) {
    if (!unknown_before || !fuse) out.push_back(id);
    unknown_before = true;
  }
}

void PieceTrie::insert(std::string_view piece, int32_t id) {
  int32_t node = 0;
  for (char c : piece) {
    int32_t next = edges_.find(node, static_cast<uint8_t>(c)).id;
    if (next < 0) {
      next = static_cast<int32_t>(ids_.size());
      ids_.push_back(-1);
      edges_.insert(node, static_cast<uint8_t>(c), {0, next});
    }
    node = next;
  }
  ids_[static_cast<size_t>(node)] = id;
}

void ByteBpe::encode(std::string_view word, size_t, ModelScratch& scratch, UnknownText& unknown,
                     std::vector<int32_t>& out) const {
  if (const auto whole = whole_words.find(word); whole != whole_words.end()) return out.push_back(whole->second);
  std::vector<int32_t>& symbols = scratch.symbols;
  symbols.clear();
  for (const char& c : word) {
    const int32_t id = byte_ids[static_cast<uint8_t>(c)];
    check(id >= 0 || !unknown.refuse(-1), ErrorCode::kInvalidArgument,
          "the vocabulary has no token for byte 0x{:02x}: text with it cannot be encoded", static_cast<uint8_t>(c));
    if (id < 0)
      unknown.meet({&c, 1}, -1);
    else
      symbols.push_back(id);
  }
  apply_merges(merges, symbols, scratch.merge);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

bool CharacterBpe::add_character(std::string_view character, int32_t id) {
  const bool added = characters_.emplace(character, id).second;
  if (added && character.size() == 1) bytes_[static_cast<uint8_t>(character[0])] = id;
  return added;
}

int32_t CharacterBpe::character_id(std::string_view character) const {
  if (character.size() == 1) return bytes_[static_cast<uint8_t>(character[0])];
  const auto found = characters_.find(character);
  return found == characters_.end() ? -1 : found->second;
}

void CharacterBpe::encode(std::string_view word, size_t, ModelScratch& scratch, UnknownText& unknown,
                          std::vector<int32_t>& out) const {
  if (const auto whole = whole_words.find(word); whole != whole_words.end()) return out.push_back(whole->second);
  auto& symbols = scratch.symbols;
  symbols.clear();
  bool unknown_before = false;
  for (size_t at = 0; at < word.size();) {
    int32_t id = -1;
    size_t length = frozen.longest(word, at, id);
    if (length == 0) {
      length = character_length(word, at);
      id = character_id(word.substr(at, length));
    }
    if (id >= 0) {
      symbols.push_back(id);
      unknown_before = false;
    } else {
      unknown_rule.encode(word.substr(at, length), unknown, unknown_before, symbols);
    }
    at += length;
  }
  apply_merges(merges, symbols, scratch.merge);
  if (extra_characters.empty()) {
    out.insert(out.end(), symbols.begin(), symbols.end());
    return;
  }
  unknown_before = false;
  for (int32_t symbol : symbols) {
    if (symbol >= vocab_size) {
      unknown_rule.encode(extra_characters[static_cast<size_t>(symbol - vocab_size)], unknown, unknown_before, out);
    } else if (symbol != unknown_rule.unk_id || !unknown_before || !unknown_rule.fuse) {
      unknown_before = symbol == unknown_rule.unk_id;
      out.push_back(symbol);
    }
  }
}

// nodes[i] is the best way to have covered the first i bytes. Pieces are tried shortest first and the first of equal
// scores is kept, as in SentencePiece.
void Unigram::encode(std::string_view word, size_t, ModelScratch& scratch, UnknownText& unknown,
                     std::vector<int32_t>& out) const {
  auto& nodes = scratch.nodes;
  nodes.assign(word.size() + 1, {});
  const auto reach = [&](size_t begin, size_t length, double score, int32_t id) {
    auto& node = nodes[begin + length];
    double total = nodes[begin].score + score;
    if (single_precision) total = static_cast<float>(total);
    if (node.begin < 0 || total > node.score) node = {total, static_cast<int64_t>(begin), id};
  };
  for (size_t at = 0; at < word.size();) {
    const size_t length = character_length(word, at);
    bool single = false;
    trie.prefixes(word, at, [&](size_t size, int32_t id) {
      reach(at, size, scores[static_cast<size_t>(id)], id);
      single = single || size == length;
    });
    if (!single) reach(at, length, unk_score, -1);
    at += length;
  }
  auto& path = scratch.symbols;  // where each piece of the best path ends, last first
  path.clear();
  for (auto at = static_cast<int64_t>(word.size()); at > 0; at = nodes[static_cast<size_t>(at)].begin) {
    path.push_back(static_cast<int32_t>(at));
  }
  for (size_t i = path.size(); i-- > 0;) {
    const auto& node = nodes[static_cast<size_t>(path[i])];
    if (node.id >= 0) {
      out.push_back(node.id);
      continue;
    }
    const auto begin = static_cast<size_t>(node.begin);
    while (unknown_rule.fuse && i > 0 && nodes[static_cast<size_t>(path[i - 1])].id < 0) --i;
    bool unknown_before = false;
    unknown_rule.encode(word.substr(begin, static_cast<size_t>(path[i]) - begin), unknown, unknown_before, out);
  }
}

void WordPiece::encode(std::string_view word, size_t, ModelScratch&, UnknownText& unknown,
                       std::vector<int32_t>& out) const {
  int64_t characters = 0;
  for (size_t at = 0; at < word.size(); at += character_length(word, at)) ++characters;
  const size_t before = out.size();
  bool covered = characters <= max_characters;
  for (size_t at = 0; covered && at < word.size();) {
    int32_t id = -1;
    const size_t length = (at == 0 ? first : following).longest(word, at, id);
    covered = length > 0;
    if (covered) out.push_back(id);
    at += length;
  }
  if (covered) return;
  out.resize(before);
  if (const int32_t id = token_for_unknown(word, unk_id, unknown); id >= 0) out.push_back(id);
}

void Characters::encode(std::string_view word, size_t enough, ModelScratch&, UnknownText& unknown,
                        std::vector<int32_t>& out) const {
  for (size_t at = 0, length = 0; at < word.size() && out.size() < enough; at += length) {
    const Utf8Char character = utf8_at(word, at);
    length = character_length(word, at);
    const auto found = character.length > 0 ? ids.find(character.code) : ids.end();
    if (found != ids.end()) {
      out.push_back(found->second);
    } else if (!unknown.refuse(-1)) {
      unknown.meet(word.substr(at, length), -1);
    } else {
      check(character.length > 0, ErrorCode::kInvalidArgument,
            "byte 0x{:02x} at {} is not valid UTF-8: a character vocabulary cannot encode it",
            static_cast<uint8_t>(word[at]), at);
      fail(ErrorCode::kInvalidArgument,
           "character '{}' (U+{:04X}) at byte {} is not among the vocabulary's {} characters", word.substr(at, length),
           character.code, at, ids.size());
    }
  }
}

}  // namespace octet
