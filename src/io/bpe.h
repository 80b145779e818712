// The merge algorithm shared by byte-level BPE (priority = rank in the merge list) and SentencePiece-like vocabularies
// (priority = rank of the merged piece's score): repeatedly joins the best adjacent pair, leftmost among equals.
// It works on symbols and priorities, not on text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace octet {

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
  size_t size() const { return size_; }

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

}  // namespace octet
