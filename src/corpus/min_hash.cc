// See min_hash.h. A hash function is h(x) = a * low(x) + b * high(x) mod 2^32 with odd factors from a fixed seed: two
// multiplications of 32 bits, in vectors of 16 that the compiler makes of what the machine has.
#include "corpus/min_hash.h"

#include <algorithm>

#include "corpus/words.h"

namespace octet {
namespace {

constexpr uint64_t kFactors[kShingleWords] = {0x9e3779b97f4a7c15ull, 0xbf58476d1ce4e5b9ull, 0x94d049bb133111ebull,
                                              0xd6e8feb86659fd93ull, 0xa0761d6478bd642full};
constexpr uint64_t kSeed = 0x2545f4914f6cdd1dull;

}  // namespace

TextHash hash_text(std::span<const uint64_t> words) {
  TextHash hash{words.size(), ~words.size()};
  for (const uint64_t word : words) {
    hash.low = mix_bits(hash.low ^ word);
    hash.high = (hash.high + word) * kFactors[0];
    hash.high ^= hash.high >> 32;
  }
  return hash;
}

void hash_shingles(std::span<const uint64_t> words, std::vector<uint64_t>& shingles) {
  const size_t length = std::min(words.size(), kShingleWords);
  shingles.resize(words.size() - length + 1);
  if (length < kShingleWords) {
    uint64_t sum = length;
    for (size_t i = 0; i < length; ++i) sum += words[i] * kFactors[i];
    shingles[0] = mix_bits(sum);
    return;
  }
  const uint64_t* word = words.data();
  for (size_t i = 0; i < shingles.size(); ++i) {
    uint64_t sum = 0;
    for (size_t k = 0; k < kShingleWords; ++k) sum += word[i + k] * kFactors[k];
    shingles[i] = mix_bits(sum);
  }
}

MinHasher::MinHasher(int bands, int rows) : bands_(static_cast<size_t>(bands)), rows_(static_cast<size_t>(rows)) {
  const size_t vectors = (bands_ * rows_ + kLanes - 1) / kLanes;
  low_.resize(vectors), high_.resize(vectors), least_.resize(vectors);
  for (size_t i = 0; i < vectors * kLanes; ++i) {
    const uint64_t random = mix_bits(kSeed * (i + 1));
    low_[i / kLanes][i % kLanes] = static_cast<uint32_t>(random) | 1;
    high_[i / kLanes][i % kLanes] = static_cast<uint32_t>(random >> 32) | 1;
  }
}

template <size_t kVectors>
void MinHasher::minima(size_t first) {
  Lanes a[kVectors], b[kVectors], least[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    a[v] = low_[first + v], b[v] = high_[first + v];
    least[v] = Lanes{} - 1;
  }
  const size_t count = halves_[0].size();
  const uint32_t* low = halves_[0].data();
  const uint32_t* high = halves_[1].data();
  for (size_t i = 0; i < count; ++i) {
    for (size_t v = 0; v < kVectors; ++v) {
      const Lanes hash = a[v] * low[i] + b[v] * high[i];
      least[v] = hash < least[v] ? hash : least[v];
    }
  }
  for (size_t v = 0; v < kVectors; ++v) least_[first + v] = least[v];
}

void MinHasher::band_keys(std::span<const uint64_t> shingles, std::span<uint64_t> keys) {
  for (auto& half : halves_) half.resize(shingles.size());
  for (size_t i = 0; i < shingles.size(); ++i) {
    halves_[0][i] = static_cast<uint32_t>(shingles[i]);
    halves_[1][i] = static_cast<uint32_t>(shingles[i] >> 32);
  }
  size_t first = 0;
  for (; first + 4 <= least_.size(); first += 4) minima<4>(first);
  switch (least_.size() - first) {
    case 3: minima<3>(first); break;
    case 2: minima<2>(first); break;
    case 1: minima<1>(first); break;
    default: break;
  }
  for (size_t band = 0; band < bands_; ++band) {
    uint64_t key = band;
    for (size_t i = band * rows_; i < (band + 1) * rows_; ++i)
      key = mix_bits((key << 32 | key >> 32) ^ least_[i / kLanes][i % kLanes]) + kFactors[0];
    keys[band] = mix_bits(key);
  }
}

}  // namespace octet
