// Published content of the block manager: the prefix tree that finds full blocks, matching and unpublishing. Blocks,
// tables and references are in block_manager.cc.
#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "infer/block_manager.h"

namespace octet {

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
    if (node == kNone) {  // no node left: later blocks of this table stay private
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
  std::array<int64_t, kMaxCacheGroups> run = {};  // consecutive blocks that a group has, ending at this node
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

}  // namespace octet
