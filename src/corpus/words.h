// Hashes of the words of a text: lower-cased runs of letters and digits of any script. What two texts with the same
// hashes in the same order differ in (case, punctuation, white space) makes no two documents of them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace octet {

// A bijection whose every bit of the result depends on every bit of x (the finalizer of MurmurHash3).
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

// Of any bytes.
inline uint64_t hash_bytes(std::string_view bytes, uint64_t seed = 0) {
  const auto load = [&](auto value, size_t at) {
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return static_cast<uint64_t>(value);
  };
  const size_t size = bytes.size();
  uint64_t hash = (seed + 1) * 0xcbf29ce484222325ull + size;
  const auto add = [&](uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
  };
  for (size_t at = 0; at + 8 < size; at += 8) add(load(uint64_t{}, at));
  if (size >= 8)  // the rest, with bytes before it
    add(load(uint64_t{}, size - 8));
  else if (size >= 4)
    add(load(uint32_t{}, 0) | load(uint32_t{}, size - 4) << 32);
  else if (size > 0)
    add(load(uint8_t{}, 0) | load(uint8_t{}, size / 2) << 8 | load(uint8_t{}, size - 1) << 16);
  return mix_bits(hash);
}

// Replaces `words` by the hash of each word of the text, in order. Bytes that are not UTF-8 end a word.
void hash_words(std::string_view text, std::vector<uint64_t>& words);

}  // namespace octet
