// Offsets for pieces of memory with known lifetimes, such that no two that live at one time overlap.
//
// Greedy: pieces are placed one after another at the lowest gap that is free over their whole lifetime; several orders
// are tried and the smallest arena is kept. A segment tree over time holds coalesced address sets, so that placing
// costs a few microseconds whatever the number of pieces. It knows nothing of graphs.
#pragma once

#include <cstdint>
#include <span>

namespace octet {

struct ArenaItem {
  int64_t bytes = 0;            // a multiple of the alignment
  int32_t first = 0, last = 0;  // live from time `first` to `last`, both included
  int64_t offset = 0;           // set by place_in_arena
};

struct ArenaSize {
  int64_t bytes = 0;       // the arena
  int64_t live_bytes = 0;  // the most that is live at one time: no arena can be smaller
  int32_t peak = -1;       // that time, or -1 when there are no items
};

// Times run from 0 to `times` - 1.
ArenaSize place_in_arena(std::span<ArenaItem> items, int32_t times);

}  // namespace octet
