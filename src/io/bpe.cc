// See bpe.h. Words of text are short, so a linear scan for the best pair is fastest; a heap over a linked list is used
// for long runs (base64, SentencePiece without pre-tokenisation), where the scan would be quadratic.
#include "io/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace octet {
namespace {

constexpr size_t kScanLimit = 48;  // symbols; bpe_bench: scan and heap are equally fast near 50

void merge_by_scan(const MergeTable& table, std::vector<int32_t>& symbols, std::vector<MergeTable::Merge>& merges) {
  size_t count = symbols.size();
  merges.resize(count);
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = table.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == MergeTable::kNoRank) break;
    symbols[best] = merges[best].id;
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    std::copy(merges.begin() + best + 2, merges.begin() + count, merges.begin() + best + 1);
    --count;
    if (best > 0) merges[best - 1] = table.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = table.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

void merge_by_heap(const MergeTable& table, std::vector<int32_t>& symbols, MergeScratch& scratch) {
  const auto count = static_cast<int32_t>(symbols.size());
  auto& merges = scratch.merges;
  auto &previous = scratch.previous, &next = scratch.next;
  auto& heap = scratch.heap;
  merges.assign(symbols.size(), {});
  previous.resize(symbols.size());
  next.resize(symbols.size());
  heap.clear();
  const auto rank_pair = [&](int32_t at) {
    merges[at] = next[at] < count ? table.find(symbols[at], symbols[next[at]]) : MergeTable::Merge{};
    if (merges[at].rank == MergeTable::kNoRank) return;
    heap.emplace_back(merges[at].rank, static_cast<uint32_t>(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < count; ++i) previous[i] = i - 1, next[i] = i + 1;
  for (int32_t i = 0; i < count; ++i) rank_pair(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto [rank, position] = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(position);
    if (merges[at].rank != rank) continue;  // the pair changed since this entry was pushed
    const int32_t right = next[at];
    symbols[at] = merges[at].id;
    merges[right] = {};
    symbols[right] = -1;
    next[at] = next[right];
    if (next[at] < count) previous[next[at]] = at;
    rank_pair(at);
    if (previous[at] >= 0) rank_pair(previous[at]);
  }
  std::erase(symbols, -1);
}

}  // namespace

MergeTable::MergeTable(size_t expected) { grow(std::bit_ceil(std::max<size_t>(16, expected * 2))); }

void MergeTable::grow(size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  size_ = 0;
  for (const Slot& slot : old) {
    if (slot.key != kEmpty) insert(static_cast<int32_t>(slot.key >> 32), static_cast<int32_t>(slot.key), slot.merge);
  }
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  if ((size_ + 1) * 2 > slots_.size()) grow(slots_.size() * 2);
  const uint64_t key = make_key(left, right);
  size_t slot = hash(key) >> shift_;
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & mask_;
  if (slots_[slot].key == kEmpty) ++size_;
  slots_[slot] = {key, merge};
}

void apply_merges(const MergeTable& table, std::vector<int32_t>& symbols, MergeScratch& scratch) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kScanLimit) {
    merge_by_scan(table, symbols, scratch.merges);
  } else {
    merge_by_heap(table, symbols, scratch);
  }
}

}  // namespace octet
