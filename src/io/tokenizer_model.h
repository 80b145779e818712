// Models: they encode one word, or a whole text if it is not split, to ids. BPE over bytes or characters merges by
// rank, unigram takes the most probable path (Viterbi), WordPiece the longest pieces from the left. All are near linear
// in the length of the word.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/tokenizer.h"

namespace octet {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
// Ids by text; found by string_views, too.
using TokenIds = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// (left id, right id) -> (rank, merged id); lower ranks merge first. Open addressing, read-only once built.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = 0xFFFFFFFFu;
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t id = -1;
  };

  explicit MergeTable(size_t expected = 0);
  // The last definition of a pair counts, as in Hugging Face's loader.
  void insert(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = make_key(left, right);
    for (size_t slot = hash(key) >> shift_;; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kEmpty) return {};
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~0ull;
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t make_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t hash(uint64_t key) { return (key ^ key >> 29) * 0x9E3779B97F4A7C15ull; }
  void grow(size_t slots);

  std::vector<Slot> slots_;
  size_t size_ = 0, mask_ = 0;
  int shift_ = 0;
};

// Buffers reused between calls; one per thread.
struct MergeScratch {
  std::vector<MergeTable::Merge> merges;  // of (symbol i, its right neighbour)
  std::vector<int32_t> previous, next;
  std::vector<std::pair<uint32_t, uint32_t>> heap;  // (rank, position)
};

// Merges `symbols` in place until no adjacent pair is in the table. O(n log n) for long input.
void apply_merges(const MergeTable& table, std::vector<int32_t>& symbols, MergeScratch& scratch);

struct ModelScratch {
  MergeScratch merge;
  std::vector<int32_t> symbols;
  struct Node {
    double score = 0;
    int64_t begin = -1;  // where the best last piece begins; -1: not reached
    int32_t id = -1;
  };
  std::vector<Node> nodes;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of `word`; may stop once `out` holds `enough`.
  virtual void encode(std::string_view word, size_t enough, ModelScratch& scratch, UnknownText& unknown,
                      std::vector<int32_t>& out) const = 0;
};

// Encoding of text that no piece covers.
struct UnknownRule {
  int32_t unk_id = -1;                             // -1: none
  bool fuse = false;                               // adjacent unknowns become one token
  std::array<int32_t, 256> byte_ids = no_bytes();  // tokens of raw bytes, before unk_id; -1: none
  static constexpr std::array<int32_t, 256> no_bytes() {
    std::array<int32_t, 256> none{};
    none.fill(-1);
    return none;
  }
  // `unknown_before`: whether the unknown token stands before this text; updated.
  void encode(std::string_view text, UnknownText& unknown, bool& unknown_before, std::vector<int32_t>& out) const;
};

// All pieces that begin at a place in a text.
class PieceTrie {
 public:
  void insert(std::string_view piece, int32_t id);
  bool empty() const { return ids_.size() == 1; }
  // Calls on_piece(length, id), shortest piece first.
  template <typename OnPiece>
  void prefixes(std::string_view text, size_t at, OnPiece on_piece) const {
    int32_t node = 0;
    for (size_t i = at; i < text.size(); ++i) {
      node = edges_.find(node, static_cast<uint8_t>(text[i])).id;
      if (node < 0) return;
      if (ids_[static_cast<size_t>(node)] >= 0) on_piece(i + 1 - at, ids_[static_cast<size_t>(node)]);
    }
  }
  // Length of the longest piece at `at`; 0: none. `id` is set where there is one.
  size_t longest(std::string_view text, size_t at, int32_t& id) const {
    size_t best = 0;
    prefixes(text, at, [&](size_t length, int32_t piece) { best = length, id = piece; });
    return best;
  }

 private:
  MergeTable edges_;                 // (node, byte) -> node
  std::vector<int32_t> ids_ = {-1};  // [node] the piece that ends there
};

struct ByteBpe : TokenModel {
  std::array<int32_t, 256> byte_ids = UnknownRule::no_bytes();  // first symbols; -1: no text with this byte is encoded
  MergeTable merges;
  TokenIds whole_words;  // ignore_merges: tokens that are not built by merging

  void encode(std::string_view word, size_t enough, ModelScratch& scratch, UnknownText& unknown,
              std::vector<int32_t>& out) const override;
};

// BPE over characters. Symbols up to `vocab_size` are tokens; larger ones are characters that are no token but part of
// one (SentencePiece allows them), which count as unknown where no merge has taken them.
struct CharacterBpe : TokenModel {
  std::vector<std::string> extra_characters;  // of the symbols from vocab_size on
  int32_t vocab_size = 0;
  MergeTable merges;
  PieceTrie frozen;      // user-defined pieces: first symbols of any length
  TokenIds whole_words;  // as above
  UnknownRule unknown_rule;

  // A first symbol; false if there is one of this character.
  bool add_character(std::string_view character, int32_t id);
  int32_t character_id(std::string_view character) const;  // -1: none
  void encode(std::string_view word, size_t enough, ModelScratch& scratch, UnknownText& unknown,
              std::vector<int32_t>& out) const override;

 private:
  TokenIds characters_;
  std::array<int32_t, 256> bytes_ = UnknownRule::no_bytes();  // of characters of one byte
};

struct Unigram : TokenModel {
  PieceTrie trie;                 // of pieces that text may become
  std::vector<double> scores;     // [vocab] log probabilities
  double unk_score = 0;           // of one unknown character
  bool single_precision = false;  // sums are rounded to float32 as in SentencePiece's own code
  UnknownRule unknown_rule;       // `fuse` holds for raw bytes, too: they replace a whole run of unknowns

  void encode(std::string_view word, size_t enough, ModelScratch& scratch, UnknownText& unknown,
              std::vector<int32_t>& out) const override;
};

struct WordPiece : TokenModel {
  PieceTrie first, following;  // pieces that begin a word, and (without "##") go on with it
  int32_t unk_id = -1;         // replaces a whole word that pieces do not cover
  int64_t max_characters = 100;

  void encode(std::string_view word, size_t enough, ModelScratch& scratch, UnknownText& unknown,
              std::vector<int32_t>& out) const override;
};

// Each character by itself; any other text is an error that names it.
struct Characters : TokenModel {
  std::unordered_map<uint32_t, int32_t> ids;  // by code point

  void encode(std::string_view word, size_t enough, ModelScratch& scratch, UnknownText& unknown,
              std::vector<int32_t>& out) const override;
};

}  // namespace octet
