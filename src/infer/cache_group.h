// What the block manager and the runner both say about the paged KV cache: its groups, and copies between blocks.
#pragma once

#include <cstdint>

namespace octet {

// Layers of the same reach share a group: a pool of blocks, and one block table per sequence.
struct CacheGroup {
  int64_t window = 0;               // tokens a query sees, itself included; 0 = all
  int64_t blocks = 0;               // in the pool
  int64_t blocks_per_sequence = 0;  // columns of a sequence's block table; known to the runner only
  int64_t block_bytes = 0;          // of all layers of the group, for messages and metrics only
};

// Content of block `from` goes to block `to` of the group before the step's first kernel. All `to` of a step are
// distinct and no `to` is a `from` of the same step: copies may run in any order.
struct BlockCopy {
  int32_t group = 0, from = 0, to = 0;
};

}  // namespace octet
