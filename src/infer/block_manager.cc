#include "infer/block_manager.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace octet {
namespace {

constexpr int64_t kMaxBlocks = 1 << 28;  // per group: node ids of all groups are 32-bit

int64_t blocks_of(int64_t tokens, int64_t block_size) { return (tokens + block_size - 1) / block_size; }

void validate(const BlockManagerOptions& options) {
  check(!options.groups.empty() && options.groups.size() <= kMaxCacheGroups, ErrorCode::kInvalidArgument,
        "block manager: {} cache groups (want 1..{})", options.groups.size(), kMaxCacheGroups);
  check(options.block_size >= 1, ErrorCode::kInvalidArgument, "block manager: block_size is {} (want >= 1)",
        options.block_size);
  for (const CacheGroup& group : options.groups)
    check(group.blocks >= 1 && group.blocks <= kMaxBlocks && group.window >= 0, ErrorCode::kInvalidArgument,
          "block manager: a cache group has {} blocks (want 1..{}: give the cache more or less memory) and window {} "
          "(want >= 0)",
          group.blocks, kMaxBlocks, group.window);
}

}  // namespace

BlockManager::BlockManager(BlockManagerOptions options) : options_(std::move(options)) {
  validate(options_);
  size_t total = 0;
  for (const CacheGroup& group : options_.groups) {
    Pool& pool = pools_.emplace_back();
    const auto count = static_cast<size_t>(group.blocks);
    pool.blocks.resize(count);
    pool.free.reserve(count);
    pool.deferred.reserve(count);
    for (int64_t b = group.blocks - 1; b >= 0; --b) pool.free.push_back(static_cast<int32_t>(b));
    pool.stats.free = group.blocks;
    total += count;
  }
  if (!options_.prefix_cache) return;
  nodes_.resize(2 * total);
  node_tokens_.resize(nodes_.size() * static_cast<size_t>(options_.block_size));
  buckets_.assign(std::bit_ceil(nodes_.size()), kNone);
  for (int32_t i = static_cast<int32_t>(nodes_.size()) - 1; i >= 0; --i) {
    nodes_[static_cast<size_t>(i)].next = unused_node_;
    unused_node_ = i;
  }
}

const BlockManager::Table& BlockManager::at(TableId table) const {
  check(table >= 0 && static_cast<size_t>(table) < tables_.size() && tables_[static_cast<size_t>(table)].live,
        ErrorCode::kInternal, "block manager: no table {}", table);
  return tables_[static_cast<size_t>(table)];
}

BlockManager::Table& BlockManager::at(TableId table) { return const_cast<Table&>(std::as_const(*this).at(table)); }

void BlockManager::unlink(Pool& pool, int32_t block) {
  Block& b = pool.blocks[static_cast<size_t>(block)];
  (b.previous == kNone ? pool.oldest : pool.blocks[static_cast<size_t>(b.previous)].next) = b.next;
  (b.next == kNone ? pool.newest : pool.blocks[static_cast<size_t>(b.next)].previous) = b.previous;
  b.previous = b.next = kNone;
  --pool.stats.cached;
}

void BlockManager::settle(int group, int32_t block) {
  Pool& pool = pools_[static_cast<size_t>(group)];
  Block& b = pool.blocks[static_cast<size_t>(block)];
  if (b.node == kNone) {
    pool.free.push_back(block);
    ++pool.stats.free;
    return;
  }
  b.previous = pool.newest;
  (pool.newest == kNone ? pool.oldest : pool.blocks[static_cast<size_t>(pool.newest)].next) = block;
  pool.newest = block;
  ++pool.stats.cached;
}

int32_t BlockManager::take(int group) {
  Pool& pool = pools_[static_cast<size_t>(group)];
  int32_t block = kNone;
  if (!pool.free.empty()) {
    block = pool.free.back();
    pool.free.pop_back();
    --pool.stats.free;
  } else {
    block = pool.oldest;
    check(block != kNone, ErrorCode::kInternal, "block manager: group {} has no block left", group);
    unlink(pool, block);
    unpublish(group, block);
    ++pool.stats.evictions;
  }
  pool.blocks[static_cast<size_t>(block)].references = 1;
  ++pool.stats.used;
  return block;
}

void BlockManager::use(int group, int32_t block) {
  Pool& pool = pools_[static_cast<size_t>(group)];
  Block& b = pool.blocks[static_cast<size_t>(block)];
  if (b.references++ > 0) return;
  if (b.deferred)
    --pool.stats.deferred;  // step_done() removes its list entry
  else
    unlink(pool, block);
  ++pool.stats.used;
}

void BlockManager::give_back(int group, int32_t block, int64_t last_step) {
  Pool& pool = pools_[static_cast<size_t>(group)];
  Block& b = pool.blocks[static_cast<size_t>(block)];
  b.busy_until = std::max(b.busy_until, last_step);
  if (--b.references > 0) return;
  --pool.stats.used;
  if (b.busy_until <= done_step_) return settle(group, block);
  ++pool.stats.deferred;
  if (!b.deferred) pool.deferred.push_back(block);
  b.deferred = true;
}

void BlockManager::step_done(int64_t step) {
  done_step_ = std::max(done_step_, step);
  for (int g = 0; g < groups(); ++g) {
    Pool& pool = pools_[static_cast<size_t>(g)];
    size_t kept = 0;
    for (int32_t block : pool.deferred) {
      Block& b = pool.blocks[static_cast<size_t>(block)];
      if (b.references == 0 && b.busy_until > done_step_) {
        pool.deferred[kept++] = block;
        continue;
      }
      b.deferred = false;
      if (b.references > 0) continue;
      --pool.stats.deferred;
      settle(g, block);
    }
    pool.deferred.resize(kept);
  }
}

TableId BlockManager::create(uint64_t adapter, uint64_t salt) {
  if (free_tables_.empty()) {
    free_tables_.push_back(static_cast<TableId>(tables_.size()));
    tables_.emplace_back();
  }
  const TableId id = free_tables_.back();
  free_tables_.pop_back();
  Table& table = tables_[static_cast<size_t>(id)];
  table.live = true;
  table.chained = options_.prefix_cache;
  table.adapter = adapter;
  table.salt = salt;
  table.length = table.chain_blocks = 0;
  table.last_step = -1;
  table.chain = kNone;
  table.first.fill(0);
  table.changed.fill(0);
  return id;
}

TableId BlockManager::fork(TableId source) {
  const TableId id = create(at(source).adapter, at(source).salt);
  const Table& from = at(source);
  Table& to = at(id);
  to.chained = from.chained;
  to.length = from.length;
  to.last_step = from.last_step;
  to.chain = from.chain;
  to.chain_blocks = from.chain_blocks;
  to.first = from.first;
  if (to.chain != kNone) ++nodes_[static_cast<size_t>(to.chain)].users;
  for (size_t g = 0; g < pools_.size(); ++g) {
    to.blocks[g] = from.blocks[g];
    for (size_t i = static_cast<size_t>(to.first[g]); i < to.blocks[g].size(); ++i)
      use(static_cast<int>(g), to.blocks[g][i]);
  }
  return id;
}

void BlockManager::free(TableId id) {
  Table& table = at(id);
  for (size_t g = 0; g < pools_.size(); ++g) {
    std::vector<int32_t>& blocks = table.blocks[g];
    for (size_t i = blocks.size(); i > static_cast<size_t>(table.first[g]); --i)
      give_back(static_cast<int>(g), blocks[i - 1], table.last_step);
    blocks.clear();
  }
  if (table.chain != kNone) drop_node_user(table.chain);
  table.chain = kNone;
  table.live = false;
  free_tables_.push_back(id);
}

int64_t BlockManager::first_visible(int group, int64_t position) const {
  const int64_t window = options_.groups[static_cast<size_t>(group)].window;
  return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1) / options_.block_size;
}

void BlockManager::slide(TableId id) {
  Table& table = at(id);
  for (int g = 0; g < groups(); ++g) {
    const auto i = static_cast<size_t>(g);
    const int64_t visible = std::min(first_visible(g, table.length), static_cast<int64_t>(table.blocks[i].size()));
    for (; table.first[i] < visible; ++table.first[i]) {
      int32_t& entry = table.blocks[i][static_cast<size_t>(table.first[i])];
      give_back(g, entry, table.last_step);
      entry = kNoBlock;
    }
  }
}

bool BlockManager::must_copy(const Table& table, int group) const {
  const auto g = static_cast<size_t>(group);
  if (table.length % options_.block_size == 0) return false;
  return pools_[g].blocks[static_cast<size_t>(table.blocks[g].back())].references > 1;
}

int64_t BlockManager::room(TableId id, int64_t most, bool with_deferred) const {
  const Table& table = at(id);
  for (int g = 0; g < groups(); ++g) {
    const auto i = static_cast<size_t>(g);
    const BlockStats& s = pools_[i].stats;
    const int64_t blocks = s.free + s.cached + (with_deferred ? s.deferred : 0) - (must_copy(table, g) ? 1 : 0);
    if (blocks < 0) return 0;
    const int64_t end = (static_cast<int64_t>(table.blocks[i].size()) + blocks) * options_.block_size;
    most = std::min(most, end - table.length);
  }
  return most;
}

bool BlockManager::room_for_each(std::span<const TableId> tables, bool with_deferred) const {
  for (size_t g = 0; g < pools_.size(); ++g) {
    const BlockStats& s = pools_[g].stats;
    int64_t blocks = s.free + s.cached + (with_deferred ? s.deferred : 0);
    for (size_t i = 0; i < tables.size(); ++i) {
      const Table& table = at(tables[i]);
      bool takes = table.length % options_.block_size == 0;
      if (!takes) {  // copies the last block, unless all other owners have their copies by then
        const int32_t last = table.blocks[g].back();
        const auto before = std::ranges::count_if(tables.first(i), [&](TableId other) {
          return !at(other).blocks[g].empty() && at(other).blocks[g].back() == last;
        });
        takes = pools_[g].blocks[static_cast<size_t>(last)].references - before > 1;
      }
      blocks -= takes ? 1 : 0;
    }
    if (blocks < 0) return false;
  }
  return true;
}

bool BlockManager::allocate(TableId id, int64_t n, int64_t step, std::vector<BlockCopy>& copies) {
  check(n > 0 && step >= newest_step_, ErrorCode::kInternal, "block manager: {} tokens in step {} after step {}", n,
        step, newest_step_);
  slide(id);
  if (room(id, n) < n) return false;
  Table& table = at(id);
  newest_step_ = step;
  for (int g = 0; g < groups(); ++g) {
    const auto i = static_cast<size_t>(g);
    std::vector<int32_t>& blocks = table.blocks[i];
    if (table.length % options_.block_size != 0) {
      int32_t& last = blocks.back();
      if (must_copy(table, g)) {
        const int32_t copy = take(g);
        copies.push_back({g, last, copy});
        give_back(g, last, step);
        last = copy;
        table.changed[i] = std::min(table.changed[i], static_cast<int64_t>(blocks.size()) - 1);
        ++pools_[i].stats.copies;
      } else {
        unpublish(g, last);
      }
    }
    const int64_t want = blocks_of(table.length + n, options_.block_size);
    while (static_cast<int64_t>(blocks.size()) < want) blocks.push_back(take(g));
  }
  table.length += n;
  table.last_step = step;
  return true;
}

void BlockManager::truncate(TableId id, int64_t length) {
  Table& table = at(id);
  check(length <= table.length && length >= table.chain_blocks * options_.block_size, ErrorCode::kInternal,
        "block manager: {} of {} tokens kept, {} blocks of them are published", length, table.length,
        table.chain_blocks);
  const auto keep = static_cast<size_t>(blocks_of(length, options_.block_size));
  for (size_t g = 0; g < pools_.size(); ++g) {
    std::vector<int32_t>& blocks = table.blocks[g];
    for (; blocks.size() > keep; blocks.pop_back()) give_back(static_cast<int>(g), blocks.back(), table.last_step);
    table.changed[g] = std::min(table.changed[g], static_cast<int64_t>(keep));
  }
  table.length = length;
}

int64_t BlockManager::take_changed(TableId id, int group) {
  Table& table = at(id);
  const auto g = static_cast<size_t>(group);
  const int64_t changed = table.changed[g];
  table.changed[g] = static_cast<int64_t>(table.blocks[g].size());
  return changed;
}

int64_t BlockManager::peak_blocks(int group, int64_t tokens, int64_t chunk) const {
  const int64_t window = options_.groups[static_cast<size_t>(group)].window, size = options_.block_size;
  const int64_t all = blocks_of(tokens, size);
  // window + chunk - 1 consecutive tokens at the worst alignment
  return window == 0 ? all : std::min(all, (window + chunk - 1 + size - 2) / size + 1);
}

}  // namespace octet
