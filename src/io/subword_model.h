// The models of vocabularies that are not byte-level: they encode one word, or a whole text if it is not split, to ids.
// BPE over characters merges by rank, unigram takes the most probable path (Viterbi), WordPiece the longest pieces from
// the left. All are near linear in the length of the word.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/bpe.h"
#include "io/tokenizer.h"

namespace octet {

struct SubwordScratch {
  MergeScratch merge;
  std::vector<int32_t> symbols;
  struct Node {
    double score = 0;
    int64_t begin = -1;  // where the best last piece begins; -1: not reached
    int32_t id = -1;
  };
  std::vector<Node> nodes;
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
  bool covers(std::string_view bytes) const {
    for (char c : bytes) {
      if (byte_ids[static_cast<uint8_t>(c)] < 0) return false;
    }
    return true;
  }
};

class SubwordModel {
 public:
  virtual ~SubwordModel() = default;
  virtual void encode(std::string_view word, SubwordScratch& scratch, UnknownText& unknown,
                      std::vector<int32_t>& out) const = 0;
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

// BPE over characters. Symbols up to `vocab_size` are tokens; larger ones are characters that are no token but part of
// one (SentencePiece allows them), which count as unknown where no merge has taken them.
struct CharacterBpe {
  std::unordered_map<std::string, int32_t> characters;  // first symbols
  std::vector<std::string> extra_characters;            // of the symbols from vocab_size on
  int32_t vocab_size = 0;
  MergeTable merges;
  PieceTrie frozen;                                      // user-defined pieces: first symbols of any length
  std::unordered_map<std::string, int32_t> whole_words;  // ignore_merges: tokens that are not built by merging
  UnknownRule unknown;
};
std::unique_ptr<SubwordModel> make_character_bpe(CharacterBpe parts);

struct Unigram {
  PieceTrie trie;                 // of pieces that text may become
  std::vector<double> scores;     // [vocab] log probabilities
  double unk_score = 0;           // of one unknown character
  bool single_precision = false;  // sums are rounded to float32 as in SentencePiece's own code
  UnknownRule unknown;            // `fuse` holds for raw bytes, too: they replace a whole run of unknowns
};
std::unique_ptr<SubwordModel> make_unigram(Unigram parts);

struct WordPiece {
  PieceTrie first, following;  // pieces that begin a word, and (without "##") go on with it
  int32_t unk_id = -1;         // replaces a whole word that pieces do not cover
  int64_t max_characters = 100;
};
std::unique_ptr<SubwordModel> make_word_piece(WordPiece parts);

}  // namespace octet
