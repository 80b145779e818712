// The ids of words seen before: a direct-mapped table of 64-byte lines. No clearing, no growth, no locks; one per
// thread. Most words of a text have been seen before and cost one lookup.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace octet {

class WordCache {
 public:
  static constexpr size_t kBytes = 23;  // longer words and id lists are not cached
  static constexpr size_t kTokens = 9;

  struct alignas(64) Line {
    std::array<uint64_t, 3> key{};  // the word's bytes, zero-padded; the last byte is its length, 0 = empty line
    int32_t count = 0;
    std::array<int32_t, kTokens> ids{};
  };
  static_assert(sizeof(Line) == 64);
  struct Place {
    std::array<uint64_t, 3> key{};
    Line* line = nullptr;
  };

  // Appends the ids of `word` and returns true when it is known; else `place` is where store() may put it.
  bool find(std::string_view word, std::vector<int32_t>& out, Place& place) {
    if (word.size() > kBytes || word.empty()) return false;
    std::array<uint64_t, 3>& key = place.key;
    std::memcpy(key.data(), word.data(), word.size());
    key[2] |= static_cast<uint64_t>(word.size()) << 56;
    uint64_t hash = (key[0] ^ key[1] * 0x9E3779B97F4A7C15ull ^ key[2] * 0xC2B2AE3D27D4EB4Full);
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93ull;
    place.line = &lines_[hash >> 32 & (kLines - 1)];
    if (place.line->key != key) return false;
    out.insert(out.end(), place.line->ids.data(), place.line->ids.data() + place.line->count);
    return true;
  }

  void store(const Place& place, std::span<const int32_t> ids) {
    if (place.line == nullptr || ids.size() > kTokens) return;
    place.line->key = place.key;
    place.line->count = static_cast<int32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), place.line->ids.begin());
  }

 private:
  static constexpr size_t kLines = 1 << 15;  // 2 MiB: the level-2 cache of today's cores
  std::vector<Line> lines_ = std::vector<Line>(kLines);
};

}  // namespace octet
