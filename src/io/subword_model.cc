// See subword_model.h.
#include "io/subword_model.h"

#include <algorithm>

#include "base/error.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

size_t character_length(std::string_view text, size_t at) {
  return static_cast<size_t>(std::max(1, utf8_at(text, at).length));  // an invalid byte is a symbol of its own
}

// The token for uncovered text; -1: the text is dropped.
int32_t token_for_unknown(std::string_view text, int32_t unk_id, UnknownText& unknown) {
  if (unknown.refuse(unk_id)) {
    fail(ErrorCode::kInvalidArgument, "the vocabulary has no token for {}{}: text holding it cannot be encoded",
         shown_with_bytes(text), unk_id < 0 ? " and none for unknown text" : "");
  }
  return unknown.meet(text, unk_id);
}

class CharacterBpeModel : public SubwordModel {
 public:
  explicit CharacterBpeModel(CharacterBpe parts) : parts_(std::move(parts)) {
    ascii_.fill(-1);
    for (const auto& [text, id] : parts_.characters) {
      if (text.size() == 1 && static_cast<uint8_t>(text[0]) < 128) ascii_[static_cast<uint8_t>(text[0])] = id;
    }
  }

  void encode(std::string_view word, SubwordScratch& scratch, UnknownText& unknown,
              std::vector<int32_t>& out) const override {
    if (!parts_.whole_words.empty()) {
      if (const auto found = parts_.whole_words.find(std::string(word)); found != parts_.whole_words.end()) {
        out.push_back(found->second);
        return;
      }
    }
    auto& symbols = scratch.symbols;
    symbols.clear();
    bool unknown_before = false;
    for (size_t at = 0; at < word.size();) {
      int32_t id = -1;
      size_t length = parts_.frozen.longest(word, at, id);
      if (length == 0) {
        length = character_length(word, at);
        id = symbol_of(word.substr(at, length));
      }
      if (id >= 0) {
        symbols.push_back(id);
        unknown_before = false;
      } else {
        add_unknown(word.substr(at, length), unknown, unknown_before, symbols);
      }
      at += length;
    }
    apply_merges(parts_.merges, symbols, scratch.merge);
    if (parts_.extra_characters.empty()) {
      out.insert(out.end(), symbols.begin(), symbols.end());
      return;
    }
    unknown_before = false;
    for (int32_t symbol : symbols) {
      if (symbol >= parts_.vocab_size) {
        const auto extra = static_cast<size_t>(symbol - parts_.vocab_size);
        add_unknown(parts_.extra_characters[extra], unknown, unknown_before, out);
      } else if (symbol != parts_.unknown.unk_id || !unknown_before || !parts_.unknown.fuse) {
        unknown_before = symbol == parts_.unknown.unk_id;
        out.push_back(symbol);
      }
    }
  }

 private:
  int32_t symbol_of(std::string_view character) const {
    if (character.size() == 1 && static_cast<uint8_t>(character[0]) < 128) {
      return ascii_[static_cast<uint8_t>(character[0])];
    }
    const auto found = parts_.characters.find(std::string(character));
    return found == parts_.characters.end() ? -1 : found->second;
  }

  void add_unknown(std::string_view text, UnknownText& unknown, bool& unknown_before, std::vector<int32_t>& to) const {
    const UnknownRule& rule = parts_.unknown;
    if (rule.covers(text)) {
      for (char c : text) to.push_back(rule.byte_ids[static_cast<uint8_t>(c)]);
      unknown_before = false;
      return;
    }
    const int32_t id = token_for_unknown(text, rule.unk_id, unknown);
    if (id < 0) return;
    if (!unknown_before || !rule.fuse) to.push_back(id);
    unknown_before = true;
  }

  CharacterBpe parts_;
  std::array<int32_t, 128> ascii_;
};

class UnigramModel : public SubwordModel {
 public:
  explicit UnigramModel(Unigram parts) : parts_(std::move(parts)) {}

  // nodes[i] is the best way to have covered the first i bytes. Pieces are tried shortest first and the first of equal
  // scores is kept, as in SentencePiece.
  void encode(std::string_view word, SubwordScratch& scratch, UnknownText& unknown,
              std::vector<int32_t>& out) const override {
    auto& nodes = scratch.nodes;
    nodes.assign(word.size() + 1, {});
    const auto reach = [&](size_t begin, size_t length, double score, int32_t id) {
      auto& node = nodes[begin + length];
      double total = nodes[begin].score + score;
      if (parts_.single_precision) total = static_cast<float>(total);
      if (node.begin < 0 || total > node.score) node = {total, static_cast<int64_t>(begin), id};
    };
    for (size_t at = 0; at < word.size();) {
      const size_t length = character_length(word, at);
      bool single = false;
      parts_.trie.prefixes(word, at, [&](size_t size, int32_t id) {
        reach(at, size, parts_.scores[static_cast<size_t>(id)], id);
        single = single || size == length;
      });
      if (!single) reach(at, length, parts_.unk_score, -1);
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
      while (parts_.unknown.fuse && i > 0 && nodes[static_cast<size_t>(path[i - 1])].id < 0) --i;
      add_unknown(word.substr(begin, static_cast<size_t>(path[i]) - begin), unknown, out);
    }
  }

 private:
  void add_unknown(std::string_view text, UnknownText& unknown, std::vector<int32_t>& out) const {
    if (parts_.unknown.covers(text)) {
      for (char c : text) out.push_back(parts_.unknown.byte_ids[static_cast<uint8_t>(c)]);
    } else if (const int32_t id = token_for_unknown(text, parts_.unknown.unk_id, unknown); id >= 0) {
      out.push_back(id);
    }
  }

  Unigram parts_;
};

class WordPieceModel : public SubwordModel {
 public:
  explicit WordPieceModel(WordPiece parts) : parts_(std::move(parts)) {}

  void encode(std::string_view word, SubwordScratch& scratch, UnknownText& unknown,
              std::vector<int32_t>& out) const override {
    int64_t characters = 0;
    for (size_t at = 0; at < word.size(); at += character_length(word, at)) ++characters;
    const size_t before = out.size();
    bool covered = characters <= parts_.max_characters;
    for (size_t at = 0; covered && at < word.size();) {
      int32_t id = -1;
      const size_t length = (at == 0 ? parts_.first : parts_.following).longest(word, at, id);
      covered = length > 0;
      if (covered) out.push_back(id);
      at += length;
    }
    if (covered) return;
    out.resize(before);
    if (const int32_t id = token_for_unknown(word, parts_.unk_id, unknown); id >= 0) out.push_back(id);
  }

 private:
  WordPiece parts_;
};

}  // namespace

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

std::unique_ptr<SubwordModel> make_character_bpe(CharacterBpe parts) {
  return std::make_unique<CharacterBpeModel>(std::move(parts));
}
std::unique_ptr<SubwordModel> make_unigram(Unigram parts) { return std::make_unique<UnigramModel>(std::move(parts)); }
std::unique_ptr<SubwordModel> make_word_piece(WordPiece parts) {
  return std::make_unique<WordPieceModel>(std::move(parts));
}

}  // namespace octet
