// Hashes of the words of a text: lower-cased runs of letters and digits of any script. What two texts with the same
// hashes in the same order differ in (case, punctuation, white space) makes no two documents of them.
#pragma once

#include <cstdint>
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
uint64_t hash_bytes(std::string_view bytes, uint64_t seed = 0);

// Replaces `words` by the hash of each word of the text, in order. Bytes that are not UTF-8 end a word.
void hash_words(std::string_view text, std::vector<uint64_t>& words);

}  // namespace octet
