// Bookkeeping of the paged KV cache: which sequence owns which block of which cache group. No tensors, no clock, no
// threads: the caller owns the object and calls it from one thread. Block ids index the cache tensors of the runner.
//
// Cache groups. Layers with the same reach share a group: full attention (window 0) or a sliding window of N tokens,
// where the query at position p sees keys p-N+1..p. A group has its own pool of blocks; a sequence has one block table
// per group. Entry i of a table is the block of tokens i*block_size .. (i+1)*block_size-1, or -1 (kNoBlock) once the
// block is entirely outside the window. Tables grow at the end, get -1 at the front, and change elsewhere only by
// copy-on-write; take_changed() returns the first changed entry.
//
// States of a block: free | used (references > 0) | cached (references 0, content known by its tokens) | deferred
// (references 0, but a step in flight still reads or writes it). free + used + cached + deferred = blocks of the pool.
//   - A used block may be shared. A shared block is never written: allocate() orders a copy first (copy-on-write).
//   - Only full blocks are published. A published block is never written while it is published.
//   - A block whose last reference is dropped is deferred until step_done() of the last step that used it, then cached
//     if it is published, else free. Cached blocks are evicted, least recently used first, when no free block is left.
//     A sequence frees its last block first, so leaves are evicted before their parents.
//
// Prefix reuse. Published blocks form a tree: a node is the content "these block_size tokens after that parent
// node", under one adapter and tenant salt, and holds at most one block per group. Nodes are found by the chain hash
// (parent's hash, tokens; adapter and salt at the root) and taken only if parent, adapter, salt and tokens are equal,
// so a hash collision costs time, never correctness. A prefix of h blocks is reusable if every full group has all
// h blocks and every window group those that position h*block_size can still see.
//
// Errors: kInvalidArgument for options that cannot work; kInternal for a misuse of the interface (unknown table).
// Operations are O(1) per block unless stated otherwise and allocate no memory once tables have grown to their usual
// lengths.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "infer/cache_group.h"

namespace octet {

inline constexpr int32_t kNoBlock = -1;
inline constexpr int kMaxCacheGroups = 4;

struct BlockManagerOptions {
  std::vector<CacheGroup> groups = {};  // 1..kMaxCacheGroups
  int32_t block_size = 16;              // tokens per block
  bool prefix_cache = true;
};

struct BlockStats {  // blocks of one group
  int64_t used = 0, cached = 0, free = 0, deferred = 0;
  int64_t hits = 0;       // total blocks reused from the cache
  int64_t evictions = 0;  // total cached blocks evicted
  int64_t copies = 0;     // total copy-on-write copies
};

// The chain hash of a block: of its tokens after content of hash `parent`, or, for the first block, after root_hash.
uint64_t block_hash(uint64_t parent, std::span<const int32_t> tokens);
uint64_t root_hash(uint64_t adapter, uint64_t salt);

using TableId = int32_t;

class BlockManager {
 public:
  explicit BlockManager(BlockManagerOptions options);

  // Creates the empty tables of a sequence. Content is shared only between tables of equal adapter and salt.
  TableId create(uint64_t adapter = 0, uint64_t salt = 0);
  // A second owner of everything `table` has; published and unpublished blocks are shared until one of them writes.
  // Legal only when the tokens of the table were computed by an earlier step than the one being planned.
  TableId fork(TableId table);
  // Frees all blocks and the table.
  void free(TableId table);
  // Adds the longest reusable prefix of `tokens`, at most tokens.size()-1 of them, so that the last one is always
  // computed. For an empty table. Returns the tokens reused, a multiple of block_size.
  int64_t match(TableId table, std::span<const int32_t> tokens);

  // Tokens that can be appended now in all groups at once, given free and cached blocks; with_deferred: and given
  // those freed when the steps in flight are done. At most `most`.
  int64_t room(TableId table, int64_t most, bool with_deferred = false) const;
  // Whether a token can be appended to each of the tables, which may share blocks. O(tables^2).
  bool room_for_each(std::span<const TableId> tables, bool with_deferred = false) const;
  // Makes length() + n slots in all groups or, returning false, in none. The slots are written by `step`, which must
  // not be less than any step named before. A shared last block is replaced; the copies are appended to `copies`.
  bool allocate(TableId table, int64_t n, int64_t step, std::vector<BlockCopy>& copies);
  // Takes back the slots behind the first `length` tokens, which the last step may still write: what they hold is never
  // published, so no content is lost. Not after slide() or publish() with tokens behind `length`.
  void truncate(TableId table, int64_t length);
  // Frees blocks outside the window of every token from position length() on. Called by allocate().
  void slide(TableId table);
  // Publishes every full block of the table whose tokens are known. tokens[0..) are the sequence's from position 0;
  // they may be fewer or more than length().
  void publish(TableId table, std::span<const int32_t> tokens);
  // Steps up to and including `step` have finished on the device: frees the blocks they deferred. O(deferred blocks).
  void step_done(int64_t step);
  // Unpublishes all content: after a device error nothing in the cache can be trusted. Used blocks stay used.
  void forget_cache();

  int64_t length(TableId table) const { return at(table).length; }
  std::span<const int32_t> blocks(TableId table, int group) const {
    return at(table).blocks[static_cast<size_t>(group)];
  }
  // Entries of blocks(table, group) that are not -1.
  int64_t held(TableId table, int group) const {
    const auto g = static_cast<size_t>(group);
    return static_cast<int64_t>(at(table).blocks[g].size()) - at(table).first[g];
  }
  // The first index at which blocks(table, group) may differ from what it was at the last call; 0 for a new table. Not
  // counted: entries that became -1, which no kernel reads.
  int64_t take_changed(TableId table, int group);

  int groups() const { return static_cast<int>(options_.groups.size()); }
  const BlockManagerOptions& options() const { return options_; }
  const BlockStats& stats(int group) const { return pools_[static_cast<size_t>(group)].stats; }
  // Maximum number of blocks that a sequence of `tokens` tokens holds in a group at a time when it is computed in
  // chunks of at most `chunk` tokens.
  int64_t peak_blocks(int group, int64_t tokens, int64_t chunk) const;

 private:
  friend struct Audit;  // testing/audit.h
  static constexpr int32_t kNone = -1;

  struct Block {
    int32_t references = 0;
    int32_t node = kNone;      // the content it is published under
    int64_t busy_until = -1;   // the last step that uses it, by the references dropped so far
    int32_t previous = kNone;  // neighbours in the LRU list while cached
    int32_t next = kNone;
    bool deferred = false;  // is in the deferred list
  };
  struct Pool {
    std::vector<Block> blocks;
    std::vector<int32_t> free;      // a stack
    std::vector<int32_t> deferred;  // in the order they were freed; may hold blocks that are used again
    int32_t oldest = kNone, newest = kNone;
    BlockStats stats;
  };
  struct Node {
    uint64_t hash = 0, adapter = 0, salt = 0;
    int32_t parent = kNone;
    int32_t next = kNone;  // in its bucket, or in the list of unused nodes
    int32_t users = 0;     // children + blocks + tables whose chain ends here; the node is freed at 0
    std::array<int32_t, kMaxCacheGroups> block;
  };
  struct Table {
    bool live = false, chained = true;  // chained: its published prefix can still grow
    uint64_t adapter = 0, salt = 0;
    int64_t length = 0;
    int64_t last_step = -1;
    int32_t chain = kNone;     // node of the last published block
    int64_t chain_blocks = 0;  // blocks published so far
    std::array<std::vector<int32_t>, kMaxCacheGroups> blocks;
    std::array<int64_t, kMaxCacheGroups> first = {};    // entries before it are -1
    std::array<int64_t, kMaxCacheGroups> changed = {};  // see take_changed
  };

  const Table& at(TableId table) const;
  Table& at(TableId table);
  int64_t first_visible(int group, int64_t position) const;
  bool must_copy(const Table& table, int group) const;
  int32_t take(int group);
  void use(int group, int32_t block);
  void give_back(int group, int32_t block, int64_t last_step);
  void settle(int group, int32_t block);
  void unlink(Pool& pool, int32_t block);
  void unpublish(int group, int32_t block);
  uint64_t chain_hash(int32_t parent, const Table& table, std::span<const int32_t> tokens) const;
  std::span<const int32_t> node_tokens(int32_t node) const;
  int32_t find_node(uint64_t hash, int32_t parent, const Table& table, std::span<const int32_t> tokens) const;
  int32_t make_node(uint64_t hash, int32_t parent, const Table& table, std::span<const int32_t> tokens);
  void drop_node_user(int32_t node);

  BlockManagerOptions options_;
  std::vector<Pool> pools_;
  std::vector<Table> tables_;
  std::vector<TableId> free_tables_;
  std::vector<Node> nodes_;           // twice the blocks of all groups
  std::vector<int32_t> node_tokens_;  // [nodes, block_size]
  std::vector<int32_t> buckets_;      // heads of the hash lists, a power of two of them
  int32_t unused_node_ = kNone;
  int64_t done_step_ = -1, newest_step_ = -1;
};

}  // namespace octet
