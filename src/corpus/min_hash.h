// MinHash over word 5-grams: of a document's set of 5-grams the least value under each of bands x rows hash functions.
// Two sets agree in one of them with a probability that is their Jaccard similarity s, so in all rows of some band with
// 1 - (1 - s^rows)^bands: with 14 bands of 8 rows 0.5 at s = 0.7, 0.9996 at 0.9.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace octet {

constexpr size_t kShingleWords = 5;

// A hash of the words in order, of 128 bits: equal texts after normalisation.
struct TextHash {
  uint64_t low = 0, high = 0;
  bool operator==(const TextHash&) const = default;
};
TextHash hash_text(std::span<const uint64_t> words);

// A hash of each 5-gram, in order, repeated ones too; of fewer words one of all of them.
void hash_shingles(std::span<const uint64_t> words, std::vector<uint64_t>& shingles);

class MinHasher {
 public:
  MinHasher(int bands, int rows);
  // Writes a key for each band: documents that agree in the band's rows have the same one.
  void band_keys(std::span<const uint64_t> shingles, std::span<uint64_t> keys);

 private:
  static constexpr size_t kLanes = 16;
  typedef uint32_t Lanes __attribute__((vector_size(4 * kLanes)));
  template <size_t kVectors>
  void minima(size_t first);

  size_t bands_, rows_;
  std::vector<Lanes> low_, high_, least_;  // factors of the two halves of a shingle's hash; the results
  std::vector<uint32_t> halves_[2];        // of the shingles
};

}  // namespace octet
