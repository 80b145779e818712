// Types of the paged KV cache that the block manager and the runner share: cache groups and copies between blocks.
#pragma once

#include <cstdint>

namespace octet {

// Layers with the same window share a group: a pool of blocks, and one block table per sequence.
struct CacheGroup {
  int64_t window = 0;               // keys a query sees, its own included; 0 = all
  int64_t blocks = 0;               // in the pool
  int64_t blocks_per_sequence = 0;  // columns of a sequence's block table; set by the runner only
  int64_t block_bytes = 0;          // over all layers of the group, for messages and metrics only
};

// Block `from` is copied to block `to` of the group before the step's first kernel. All `to` of a step are
// distinct and no `to` is a `from` of the same step: copies may run in any order.
struct BlockCopy {
  int32_t group = 0, from = 0, to = 0;
};

}  // namespace octet
