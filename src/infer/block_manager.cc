#include "infer/block_manager.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/rng.h"

namespace octet {
namespace {

constexpr int64_t kMaxBlocks = 1 << 28;  // of a group: nodes of all groups are counted in 32 bits

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

// --- blocks
// -----------------------------------------------------------------------------------------------------------

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
    --pool.stats.deferred;  // its entry in the list is dropped by step_done
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

// --- tables
// -----------------------------------------------------------------------------------------------------------

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
  check(length >= 0 && length <= table.length, ErrorCode::kInvalidArgument,
        "block manager: cannot truncate {} tokens to {}", table.length, length);
  for (int g = 0; g < groups(); ++g)
    check(table.first[static_cast<size_t>(g)] <= first_visible(g, length), ErrorCode::kInvalidArgument,
          "block manager: cannot truncate {} tokens to {}: group {} has given back its first {} blocks", table.length,
          length, g, table.first[static_cast<size_t>(g)]);
  const int64_t keep = blocks_of(length, options_.block_size);
  for (size_t g = 0; g < pools_.size(); ++g) {
    std::vector<int32_t>& blocks = table.blocks[g];
    for (; static_cast<int64_t>(blocks.size()) > keep; blocks.pop_back())
      give_back(static_cast<int>(g), blocks.back(), table.last_step);
    table.changed[g] = std::min(table.changed[g], keep);
  }
  table.length = length;
  for (; table.chain_blocks > length / options_.block_size; --table.chain_blocks) {
    const int32_t parent = nodes_[static_cast<size_t>(table.chain)].parent;
    if (parent != kNone) ++nodes_[static_cast<size_t>(parent)].users;
    drop_node_user(table.chain);
    table.chain = parent;
  }
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
  // window + chunk - 1 tokens in a row, at the worst alignment
  return window == 0 ? all : std::min(all, (window + chunk - 1 + size - 2) / size + 1);
}

// --- published content
// ------------------------------------------------------------------------------------------------

uint64_t block_hash(uint64_t parent, std::span<const int32_t> tokens) {
  uint64_t hash = parent;
  for (int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return mix64(hash);
}

uint64_t root_hash(uint64_t adapter, uint64_t salt) { return mix64(adapter ^ mix64(salt + 1)); }

uint64_t BlockManager::chain_hash(int32_t parent, const Table& table, std::span<const int32_t> tokens) const {
  return block_hash(parent == kNone ? root_hash(table.adapter, table.salt) : nodes_[static_cast<size_t>(parent)].hash,
                    tokens);
}

std::span<const int32_t> BlockManager::node_tokens(int32_t node) const {
  const auto size = static_cast<size_t>(options_.block_size);
  return {node_tokens_.data() + static_cast<size_t>(node) * size, size};
}

int32_t BlockManager::find_node(uint64_t hash, int32_t parent, const Table& table,
                                std::span<const int32_t> tokens) const {
  for (int32_t i = buckets_[hash & (buckets_.size() - 1)]; i != kNone; i = nodes_[static_cast<size_t>(i)].next) {
    const Node& node = nodes_[static_cast<size_t>(i)];
    if (node.hash == hash && node.parent == parent && node.adapter == table.adapter && node.salt == table.salt &&
        std::ranges::equal(node_tokens(i), tokens))
      return i;
  }
  return kNone;
}

int32_t BlockManager::make_node(uint64_t hash, int32_t parent, const Table& table, std::span<const int32_t> tokens) {
  const int32_t id = unused_node_;
  if (id == kNone) return kNone;
  Node& node = nodes_[static_cast<size_t>(id)];
  unused_node_ = node.next;
  int32_t& bucket = buckets_[hash & (buckets_.size() - 1)];
  node = {.hash = hash, .adapter = table.adapter, .salt = table.salt, .parent = parent, .next = bucket};
  node.block.fill(kNoBlock);
  bucket = id;
  if (parent != kNone) ++nodes_[static_cast<size_t>(parent)].users;
  std::ranges::copy(tokens, node_tokens_.begin() + static_cast<int64_t>(id) * options_.block_size);
  return id;
}

void BlockManager::drop_node_user(int32_t id) {
  while (id != kNone && --nodes_[static_cast<size_t>(id)].users == 0) {
    Node& node = nodes_[static_cast<size_t>(id)];
    int32_t* link = &buckets_[node.hash & (buckets_.size() - 1)];
    while (*link != id) link = &nodes_[static_cast<size_t>(*link)].next;
    *link = node.next;
    node.next = unused_node_;
    unused_node_ = id;
    id = node.parent;
  }
}

void BlockManager::unpublish(int group, int32_t block) {
  Block& b = pools_[static_cast<size_t>(group)].blocks[static_cast<size_t>(block)];
  if (b.node == kNone) return;
  nodes_[static_cast<size_t>(b.node)].block[static_cast<size_t>(group)] = kNoBlock;
  drop_node_user(b.node);
  b.node = kNone;
}

void BlockManager::publish(TableId id, std::span<const int32_t> tokens) {
  Table& table = at(id);
  const int64_t size = options_.block_size;
  const int64_t known = std::min(table.length, static_cast<int64_t>(tokens.size()));
  while (table.chained && (table.chain_blocks + 1) * size <= known) {
    const auto index = static_cast<size_t>(table.chain_blocks);
    const auto content = tokens.subspan(index * static_cast<size_t>(size), static_cast<size_t>(size));
    const uint64_t hash = chain_hash(table.chain, table, content);
    int32_t node = find_node(hash, table.chain, table, content);
    if (node == kNone) node = make_node(hash, table.chain, table, content);
    if (node == kNone) {  // no node left: what follows in this table stays private
      table.chained = false;
      return;
    }
    ++nodes_[static_cast<size_t>(node)].users;
    if (table.chain != kNone) drop_node_user(table.chain);
    table.chain = node;
    ++table.chain_blocks;
    for (size_t g = 0; g < pools_.size(); ++g) {
      const int32_t block = table.blocks[g][index];
      int32_t& published = nodes_[static_cast<size_t>(node)].block[g];
      if (block == kNoBlock || published != kNoBlock) continue;
      int32_t& block_node = pools_[g].blocks[static_cast<size_t>(block)].node;
      if (block_node != kNone) continue;
      published = block;
      block_node = node;
      ++nodes_[static_cast<size_t>(node)].users;
    }
  }
}

int64_t BlockManager::match(TableId id, std::span<const int32_t> tokens) {
  Table& table = at(id);
  check(table.length == 0 && table.chain_blocks == 0, ErrorCode::kInternal,
        "block manager: match on a table of {} tokens", table.length);
  if (!table.chained || tokens.empty()) return 0;
  const auto size = static_cast<size_t>(options_.block_size);
  const int64_t most = static_cast<int64_t>((tokens.size() - 1) / size);
  std::array<int64_t, kMaxCacheGroups> run = {};  // blocks in a row that a group has, ending at the present node
  int64_t best = 0;
  int32_t best_node = kNone, node = kNone;
  for (int64_t h = 1; h <= most; ++h) {
    const auto content = tokens.subspan(static_cast<size_t>(h - 1) * size, size);
    node = find_node(chain_hash(node, table, content), node, table, content);
    if (node == kNone) break;
    bool reusable = true, extendable = true;
    for (int g = 0; g < groups(); ++g) {
      const auto i = static_cast<size_t>(g);
      run[i] = nodes_[static_cast<size_t>(node)].block[i] == kNoBlock ? 0 : run[i] + 1;
      reusable &= run[i] >= h - first_visible(g, h * options_.block_size);
      extendable &= options_.groups[i].window > 0 || run[i] == h;
    }
    if (reusable) best = h, best_node = node;
    if (!extendable) break;
  }
  if (best == 0) return 0;
  table.length = best * options_.block_size;
  table.chain = best_node;
  table.chain_blocks = best;
  ++nodes_[static_cast<size_t>(best_node)].users;
  for (int g = 0; g < groups(); ++g) {
    const auto i = static_cast<size_t>(g);
    table.first[i] = first_visible(g, table.length);
    table.blocks[i].assign(static_cast<size_t>(best), kNoBlock);
    node = best_node;
    for (int64_t h = best - 1; h >= table.first[i]; --h, node = nodes_[static_cast<size_t>(node)].parent) {
      const int32_t block = nodes_[static_cast<size_t>(node)].block[i];
      use(g, block);
      table.blocks[i][static_cast<size_t>(h)] = block;
      ++pools_[i].stats.hits;
    }
  }
  return table.length;
}

void BlockManager::forget_cache() {
  for (int g = 0; g < groups(); ++g) {
    Pool& pool = pools_[static_cast<size_t>(g)];
    while (pool.oldest != kNone) {
      const int32_t block = pool.oldest;
      unlink(pool, block);
      unpublish(g, block);
      settle(g, block);
    }
    for (int32_t block = 0; block < static_cast<int32_t>(pool.blocks.size()); ++block) unpublish(g, block);
  }
  for (Table& table : tables_) {
    if (table.live && table.chain != kNone) drop_node_user(table.chain);
    table.chain = kNone;
    table.chained = false;
  }
}

// --- verification
// -----------------------------------------------------------------------------------------------------

void BlockManager::verify() const {
  std::vector<int32_t> node_users(nodes_.size(), 0);
  for (size_t g = 0; g < pools_.size(); ++g) {
    const Pool& pool = pools_[g];
    std::vector<int32_t> references(pool.blocks.size(), 0), places(pool.blocks.size(), 0);
    for (const Table& table : tables_) {
      if (!table.live) continue;
      const auto& blocks = table.blocks[g];
      check(static_cast<int64_t>(blocks.size()) == blocks_of(table.length, options_.block_size), ErrorCode::kInternal,
            "verify: {} blocks for {} tokens", blocks.size(), table.length);
      for (size_t i = 0; i < blocks.size(); ++i) {
        const bool given_back = static_cast<int64_t>(i) < table.first[g];
        check(given_back == (blocks[i] == kNoBlock), ErrorCode::kInternal, "verify: entry {} is {}, first kept is {}",
              i, blocks[i], table.first[g]);
        if (!given_back) ++references[static_cast<size_t>(blocks[i])];
      }
    }
    for (int32_t b : pool.free) ++places[static_cast<size_t>(b)];
    int64_t cached = 0, used = 0, deferred = 0;
    int32_t previous = kNone;
    for (int32_t b = pool.oldest; b != kNone; previous = b, b = pool.blocks[static_cast<size_t>(b)].next) {
      ++places[static_cast<size_t>(b)], ++cached;
      const Block& block = pool.blocks[static_cast<size_t>(b)];
      check(block.previous == previous && block.node != kNone, ErrorCode::kInternal, "verify: LRU link of {}", b);
    }
    for (int32_t b : pool.deferred) {
      const Block& block = pool.blocks[static_cast<size_t>(b)];
      check(block.deferred, ErrorCode::kInternal, "verify: block {} is in the deferred list by mistake", b);
      if (block.references == 0) ++places[static_cast<size_t>(b)], ++deferred;
    }
    for (size_t b = 0; b < pool.blocks.size(); ++b) {
      const Block& block = pool.blocks[b];
      check(block.references == references[b], ErrorCode::kInternal,
            "verify: group {} block {}: {} references, {} owners", g, b, block.references, references[b]);
      if (references[b] > 0) ++used, ++places[b];
      check(places[b] == 1, ErrorCode::kInternal, "verify: group {} block {} is in {} places", g, b, places[b]);
      if (block.node == kNone) continue;
      ++node_users[static_cast<size_t>(block.node)];
      check(nodes_[static_cast<size_t>(block.node)].block[g] == static_cast<int32_t>(b), ErrorCode::kInternal,
            "verify: block {} and its node disagree", b);
    }
    const BlockStats& s = pool.stats;
    check(s.used == used && s.cached == cached && s.deferred == deferred &&
              s.free == static_cast<int64_t>(pool.free.size()),
          ErrorCode::kInternal, "verify: group {} counts used {} cached {} deferred {} free {}, found {} {} {} {}", g,
          s.used, s.cached, s.deferred, s.free, used, cached, deferred, pool.free.size());
  }
  for (const Table& table : tables_)
    if (table.live && table.chain != kNone) ++node_users[static_cast<size_t>(table.chain)];
  size_t seen = 0;
  for (int32_t head : buckets_)
    for (int32_t i = head; i != kNone; i = nodes_[static_cast<size_t>(i)].next, ++seen)
      if (nodes_[static_cast<size_t>(i)].parent != kNone)
        ++node_users[static_cast<size_t>(nodes_[static_cast<size_t>(i)].parent)];
  for (int32_t i = unused_node_; i != kNone; i = nodes_[static_cast<size_t>(i)].next, ++seen)
    check(node_users[static_cast<size_t>(i)] == 0, ErrorCode::kInternal, "verify: unused node {} is used", i);
  check(seen == nodes_.size(), ErrorCode::kInternal, "verify: {} of {} nodes found", seen, nodes_.size());
  for (int32_t head : buckets_)
    for (int32_t i = head; i != kNone; i = nodes_[static_cast<size_t>(i)].next)
      check(nodes_[static_cast<size_t>(i)].users == node_users[static_cast<size_t>(i)], ErrorCode::kInternal,
            "verify: node {} counts {} users, found {}", i, nodes_[static_cast<size_t>(i)].users,
            node_users[static_cast<size_t>(i)]);
}

}  // namespace octet
