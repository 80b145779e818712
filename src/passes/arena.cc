#include "passes/arena.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

namespace octet {
namespace {

struct Range {
  int64_t begin, end;
};

// A set of addresses: sorted, disjoint, not touching.
class AddressSet {
 public:
  const std::vector<Range>& ranges() const { return ranges_; }
  void clear() { ranges_.clear(); }

  void insert(Range range) {
    auto begin = std::lower_bound(ranges_.begin(), ranges_.end(), range.begin,
                                  [](const Range& r, int64_t address) { return r.end < address; });
    auto end = begin;
    for (; end != ranges_.end() && end->begin <= range.end; ++end) {
      range = {std::min(range.begin, end->begin), std::max(range.end, end->end)};
    }
    if (begin == end) {
      ranges_.insert(begin, range);
    } else {
      *begin = range;
      ranges_.erase(begin + 1, end);
    }
  }

 private:
  std::vector<Range> ranges_;
};

// Which addresses are taken when. Tree node 1 spans all times; 2i and 2i+1 are the halves of i.
class Occupancy {
 public:
  explicit Occupancy(int32_t times)
      : leaves_(std::bit_ceil(static_cast<uint32_t>(std::max(times, 1)))), whole_(2 * leaves_), any_(2 * leaves_) {}

  void clear() {
    for (AddressSet& set : whole_) set.clear();
    for (AddressSet& set : any_) set.clear();
  }

  void take(const ArenaItem& item) {
    Range range{item.offset, item.offset + item.bytes};
    visit(
        item, [&](uint32_t node) { whole_[node].insert(range), any_[node].insert(range); },
        [&](uint32_t node) { any_[node].insert(range); });
  }

  // The lowest offset at which `item` is free during its whole life.
  int64_t lowest_gap(const ArenaItem& item) {
    taken_.clear();
    auto gather = [&](const AddressSet& set) { taken_.insert(taken_.end(), set.ranges().begin(), set.ranges().end()); };
    visit(
        item, [&](uint32_t node) { gather(any_[node]); }, [&](uint32_t node) { gather(whole_[node]); });
    std::ranges::sort(taken_, [](const Range& a, const Range& b) { return a.begin < b.begin; });
    int64_t offset = 0;
    for (const Range& range : taken_) {
      if (range.begin - offset >= item.bytes) break;
      offset = std::max(offset, range.end);
    }
    return offset;
  }

 private:
  // Calls inside(node) for the largest tree nodes that make up the item's life, above(node) for each of their ancestors
  // once.
  template <typename Inside, typename Above>
  void visit(const ArenaItem& item, const Inside& inside, const Above& above) {
    uint32_t low = leaves_ + static_cast<uint32_t>(item.first), high = leaves_ + static_cast<uint32_t>(item.last);
    uint32_t left = low, right = high + 1;
    for (; left < right; left /= 2, right /= 2) {
      if (left % 2 == 1) inside(left++);
      if (right % 2 == 1) inside(--right);
    }
    // Ancestors of the two ends that are not themselves inside the life.
    for (uint32_t a = low / 2, b = high / 2, span = 2; a >= 1; a /= 2, b /= 2, span *= 2) {
      if (!within(a, span, low, high)) above(a);
      if (b != a && !within(b, span, low, high)) above(b);
    }
  }
  static bool within(uint32_t node, uint32_t span, uint32_t low, uint32_t high) {
    uint32_t first_leaf = node * span, last_leaf = first_leaf + span - 1;
    return low <= first_leaf && last_leaf <= high;
  }

  uint32_t leaves_;
  std::vector<AddressSet> whole_;  // of what lives through all the times of the tree node
  std::vector<AddressSet> any_;    // of what lives at some of them
  std::vector<Range> taken_;
};

ArenaSize max_live(std::span<const ArenaItem> items, int32_t times) {
  std::vector<int64_t> change(static_cast<size_t>(times) + 1, 0);
  for (const ArenaItem& item : items) {
    change[static_cast<size_t>(item.first)] += item.bytes;
    change[static_cast<size_t>(item.last) + 1] -= item.bytes;
  }
  ArenaSize size;
  int64_t live = 0;
  for (int32_t t = 0; t < times; ++t) {
    live += change[static_cast<size_t>(t)];
    if (live > size.live_bytes) size.live_bytes = live, size.peak = t;
  }
  return size;
}

}  // namespace

ArenaSize place_in_arena(std::span<ArenaItem> items, int32_t times) {
  ArenaSize size = max_live(items, times);
  auto life = [](const ArenaItem& item) { return item.last - item.first; };
  auto at_peak = [&](const ArenaItem& item) { return item.first <= size.peak && size.peak <= item.last; };
  auto longest = [&](const ArenaItem& a, const ArenaItem& b) {
    return life(a) != life(b) ? life(a) > life(b) : a.bytes > b.bytes;
  };
  auto largest = [&](const ArenaItem& a, const ArenaItem& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : life(a) > life(b);
  };
  auto earliest = [&](const ArenaItem& a, const ArenaItem& b) {
    return a.first != b.first ? a.first < b.first : a.bytes > b.bytes;
  };
  auto peak_first = [&](const ArenaItem& a, const ArenaItem& b) {
    return at_peak(a) != at_peak(b) ? at_peak(a) : at_peak(a) ? longest(a, b) : largest(a, b);
  };
  Occupancy occupancy(times);
  std::vector<size_t> order(items.size());
  std::vector<int64_t> best;
  auto attempt = [&](const auto& before) {
    if (!best.empty() && size.bytes == size.live_bytes) return;
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return before(items[a], items[b]); });
    occupancy.clear();
    int64_t bytes = 0;
    for (size_t i : order) {
      items[i].offset = occupancy.lowest_gap(items[i]);
      occupancy.take(items[i]);
      bytes = std::max(bytes, items[i].offset + items[i].bytes);
    }
    if (!best.empty() && bytes >= size.bytes) return;
    size.bytes = bytes;
    best.resize(items.size());
    for (size_t i = 0; i < items.size(); ++i) best[i] = items[i].offset;
  };
  attempt(longest);
  attempt(peak_first);
  attempt(largest);
  attempt(earliest);
  for (size_t i = 0; i < best.size(); ++i) items[i].offset = best[i];
  return size;
}

}  // namespace octet
