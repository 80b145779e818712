// SentencePiece's normaliser: longest match in the file's own map of characters (a Darts double-array trie, so NFKC and
// its variants need no tables here), then white space is squeezed, a space put in front and written as U+2581.
// Layout of the map: u32 bytes of the trie; its units, u32 each; strings that end in NUL, named by their offset.
#include <cstring>

#include "base/error.h"
#include "io/sentencepiece.h"
#include "io/subword_model.h"
#include "io/subword_tokenizer.h"
#include "io/tokenizer_utf8.h"

namespace octet {
namespace {

class CharacterMap {
 public:
  CharacterMap(std::string_view bytes, const std::string& where) {
    if (bytes.empty()) return;
    uint32_t trie_bytes = 0;
    check(bytes.size() > 4, ErrorCode::kCorrupt, "{}: a character map of {} bytes", where, bytes.size());
    std::memcpy(&trie_bytes, bytes.data(), 4);
    check(trie_bytes >= 4 && trie_bytes % 4 == 0 && trie_bytes < bytes.size() - 4 && bytes.back() == 0,
          ErrorCode::kCorrupt, "{}: the character map is damaged: a trie of {} bytes in {}", where, trie_bytes,
          bytes.size());
    units_.resize(trie_bytes / 4);
    std::memcpy(units_.data(), bytes.data() + 4, trie_bytes);
    strings_ = bytes.substr(4 + trie_bytes);
  }

  // The longest entry at the beginning of `text`: its length (0: none) and what it becomes.
  size_t longest(std::string_view text, std::string_view& becomes) const {
    constexpr size_t kMaxMatches = 32;  // as in the library, which looks no further
    size_t best = 0, matches = 0;
    uint32_t at = 0;
    if (units_.empty()) return 0;
    at ^= offset_of(units_[0]);
    for (size_t i = 0; i < text.size() && matches < kMaxMatches; ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      at ^= byte;
      if (at >= units_.size() || (units_[at] & 0x800000FFu) != byte) break;
      const bool has_leaf = (units_[at] >> 8 & 1) != 0;
      at ^= offset_of(units_[at]);
      if (!has_leaf || at >= units_.size()) continue;
      const uint32_t value = units_[at] & 0x7FFFFFFFu;
      if (value >= strings_.size()) continue;
      best = i + 1;
      ++matches;
      becomes = std::string_view(strings_).substr(value);
      becomes = becomes.substr(0, becomes.find('\0'));
    }
    return best;
  }

 private:
  static uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }
  std::vector<uint32_t> units_;
  std::string strings_;
};

class Normaliser {
 public:
  Normaliser(const SentencePieceVocabulary& vocabulary, const std::string& where)
      : map_(vocabulary.charsmap, where),
        add_prefix_(vocabulary.add_dummy_prefix),
        squeeze_(vocabulary.remove_extra_whitespaces),
        keep_invalid_(vocabulary.keep_invalid) {
    for (const auto& piece : vocabulary.pieces) {
      if (piece.type == SentencePieceVocabulary::Type::kUserDefined) kept_.insert(piece.text, 0);
    }
  }

  std::string run(std::string_view text, const TextPlace& place) const {
    std::string out;
    std::string_view becomes;
    const auto take = [&] {
      const size_t length = next(text, becomes);
      text.remove_prefix(length);
    };
    bool after_space = squeeze_ && place.first && !place.continues;
    if (after_space) {
      while (!text.empty()) {
        const size_t length = next(text, becomes);
        if (becomes != " ") break;
        text.remove_prefix(length);
      }
    }
    if (text.empty()) return out;
    out.reserve(text.size() * 3 / 2);
    if (add_prefix_ && place.first && !place.continues) out += kSpaceMark;
    while (!text.empty()) {
      take();
      while (after_space && becomes.starts_with(' ')) becomes.remove_prefix(1);
      if (becomes.empty()) continue;
      for (char c : becomes) {
        if (c == ' ') {
          out += kSpaceMark;
        } else {
          out += c;
        }
      }
      after_space = squeeze_ && becomes.ends_with(' ');
    }
    while (squeeze_ && place.last && out.ends_with(kSpaceMark)) out.resize(out.size() - std::strlen(kSpaceMark));
    return out;
  }

 private:
  // What the beginning of `text` becomes; returns how many bytes of it that took.
  size_t next(std::string_view text, std::string_view& becomes) const {
    int32_t id = -1;
    if (const size_t length = kept_.empty() ? 0 : kept_.longest(text, 0, id); length > 0) {
      becomes = text.substr(0, length);
      return length;
    }
    if (const size_t length = map_.longest(text, becomes); length > 0) return length;
    const int length = utf8_at(text, 0).length;
    becomes = length == 0 && !keep_invalid_ ? std::string_view("\xEF\xBF\xBD") : text.substr(0, std::max(length, 1));
    return static_cast<size_t>(std::max(length, 1));
  }

  CharacterMap map_;
  PieceTrie kept_;
  bool add_prefix_, squeeze_, keep_invalid_;
};

}  // namespace

TextNormalizer::Step sentencepiece_normalizer(const SentencePieceVocabulary& vocabulary, const std::string& where) {
  const auto normaliser = std::make_shared<Normaliser>(vocabulary, where);
  return [normaliser](std::string_view text, const TextPlace& place) { return normaliser->run(text, place); };
}

}  // namespace octet
