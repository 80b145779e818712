// SentencePiece's precompiled character map: a double array of bytes whose leaves point to texts; and Hugging Face's
// use of it, the normalizer "Precompiled" of a tokenizer.json.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/tokenizer_steps.h"

namespace octet {

// The file's own map of characters, a Darts double-array trie, so NFKC and its variants need no tables here. Layout:
// u32 bytes of the trie; its units, u32 each; strings that end in NUL, named by their offset.
class CharacterMap {
 public:
  static constexpr size_t kMaxMatches = 32;  // as in the library, which looks no further

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

  // The longest entry at the beginning of `text`: its length (0: none) and what it becomes. `most`: entries looked at,
  // shortest first.
  size_t longest(std::string_view text, std::string_view& becomes, size_t most = kMaxMatches) const {
    size_t best = 0, matches = 0;
    uint32_t at = 0;
    if (units_.empty()) return 0;
    at ^= offset_of(units_[0]);
    for (size_t i = 0; i < text.size() && matches < most; ++i) {
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

// `charsmap`: in base64. Each grapheme of fewer than six bytes, else each character, becomes what the shortest entry at
// its beginning says. Throws kCorrupt for what is no base64 of a map.
TextNormalizer::Step precompiled_step(std::string_view charsmap, const std::string& where);

}  // namespace octet
