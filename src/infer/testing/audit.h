// What tests know of the scheduler and the block manager beyond what they tell: every count and link, recounted.
#pragma once

#include <algorithm>

#include "base/error.h"
#include "infer/scheduler.h"

namespace octet {

struct Audit {
  // Recounts everything from the tables and throws kInternal where a count or link is wrong. O(all blocks).
  static void verify(const BlockManager& m) {
    std::vector<int32_t> node_users(m.nodes_.size(), 0);
    for (size_t g = 0; g < m.pools_.size(); ++g) {
      const BlockManager::Pool& pool = m.pools_[g];
      std::vector<int32_t> references(pool.blocks.size(), 0), places(pool.blocks.size(), 0);
      for (const BlockManager::Table& table : m.tables_) {
        if (!table.live) continue;
        const auto& blocks = table.blocks[g];
        check(static_cast<int64_t>(blocks.size()) == (table.length + m.options_.block_size - 1) / m.options_.block_size,
              ErrorCode::kInternal, "verify: {} blocks for {} tokens", blocks.size(), table.length);
        for (size_t i = 0; i < blocks.size(); ++i) {
          const bool given_back = static_cast<int64_t>(i) < table.first[g];
          check(given_back == (blocks[i] == kNoBlock), ErrorCode::kInternal, "verify: entry {} is {}, first kept is {}",
                i, blocks[i], table.first[g]);
          if (!given_back) ++references[static_cast<size_t>(blocks[i])];
        }
      }
      for (int32_t b : pool.free) ++places[static_cast<size_t>(b)];
      int64_t cached = 0, used = 0, deferred = 0;
      int32_t previous = BlockManager::kNone;
      for (int32_t b = pool.oldest; b != BlockManager::kNone;
           previous = b, b = pool.blocks[static_cast<size_t>(b)].next) {
        ++places[static_cast<size_t>(b)], ++cached;
        const BlockManager::Block& block = pool.blocks[static_cast<size_t>(b)];
        check(block.previous == previous && block.node != BlockManager::kNone, ErrorCode::kInternal,
              "verify: LRU link of {}", b);
      }
      for (int32_t b : pool.deferred) {
        const BlockManager::Block& block = pool.blocks[static_cast<size_t>(b)];
        check(block.deferred, ErrorCode::kInternal, "verify: block {} is in the deferred list by mistake", b);
        if (block.references == 0) ++places[static_cast<size_t>(b)], ++deferred;
      }
      for (size_t b = 0; b < pool.blocks.size(); ++b) {
        const BlockManager::Block& block = pool.blocks[b];
        check(block.references == references[b], ErrorCode::kInternal,
              "verify: group {} block {}: {} references, {} owners", g, b, block.references, references[b]);
        if (references[b] > 0) ++used, ++places[b];
        check(places[b] == 1, ErrorCode::kInternal, "verify: group {} block {} is in {} places", g, b, places[b]);
        if (block.node == BlockManager::kNone) continue;
        ++node_users[static_cast<size_t>(block.node)];
        check(m.nodes_[static_cast<size_t>(block.node)].block[g] == static_cast<int32_t>(b), ErrorCode::kInternal,
              "verify: block {} and its node disagree", b);
      }
      const BlockStats& s = pool.stats;
      check(s.used == used && s.cached == cached && s.deferred == deferred &&
                s.free == static_cast<int64_t>(pool.free.size()),
            ErrorCode::kInternal, "verify: group {} counts used {} cached {} deferred {} free {}, found {} {} {} {}", g,
            s.used, s.cached, s.deferred, s.free, used, cached, deferred, pool.free.size());
    }
    for (const BlockManager::Table& table : m.tables_)
      if (table.live && table.chain != BlockManager::kNone) ++node_users[static_cast<size_t>(table.chain)];
    size_t seen = 0;
    for (int32_t head : m.buckets_)
      for (int32_t i = head; i != BlockManager::kNone; i = m.nodes_[static_cast<size_t>(i)].next, ++seen)
        if (m.nodes_[static_cast<size_t>(i)].parent != BlockManager::kNone)
          ++node_users[static_cast<size_t>(m.nodes_[static_cast<size_t>(i)].parent)];
    for (int32_t i = m.unused_node_; i != BlockManager::kNone; i = m.nodes_[static_cast<size_t>(i)].next, ++seen)
      check(node_users[static_cast<size_t>(i)] == 0, ErrorCode::kInternal, "verify: unused node {} is used", i);
    check(seen == m.nodes_.size(), ErrorCode::kInternal, "verify: {} of {} nodes found", seen, m.nodes_.size());
    for (int32_t head : m.buckets_)
      for (int32_t i = head; i != BlockManager::kNone; i = m.nodes_[static_cast<size_t>(i)].next)
        check(m.nodes_[static_cast<size_t>(i)].users == node_users[static_cast<size_t>(i)], ErrorCode::kInternal,
              "verify: node {} counts {} users, found {}", i, m.nodes_[static_cast<size_t>(i)].users,
              node_users[static_cast<size_t>(i)]);
  }

  // Checks the invariants of scheduler.h against the block manager; throws kInternal.
  static void verify(const Scheduler& scheduler) {
    verify(scheduler.blocks_);
    int64_t waiting = 0, slots = 0;
    Scheduler::Blocks reserved = {};
    std::vector<bool> slot_used(static_cast<size_t>(scheduler.options_.max_sequences), false);
    for (size_t i = 0; i < scheduler.records_.size(); ++i) {
      const Scheduler::SequenceRecord& s = scheduler.records_[i];
      const auto record = static_cast<int32_t>(i);
      const bool holds = s.state == Scheduler::State::kRunning;
      waiting += s.state == Scheduler::State::kWaiting ? 1 + static_cast<int64_t>(s.siblings.size()) : 0;
      check((s.table >= 0) == holds && (!holds || s.slot >= 0), ErrorCode::kInternal,
            "verify: sequence {} has table {} and slot {} in state {}", s.id, s.table, s.slot,
            static_cast<int>(s.state));
      if (s.slot >= 0) {
        ++slots;
        check(!slot_used[static_cast<size_t>(s.slot)], ErrorCode::kInternal, "verify: slot {} used twice", s.slot);
        slot_used[static_cast<size_t>(s.slot)] = true;
      }
      for (size_t g = 0; g < reserved.size(); ++g) reserved[g] += s.slot >= 0 ? s.own[g] + s.shared[g] : 0;
      check(holds || s.state == Scheduler::State::kEnded || s.state == Scheduler::State::kUnused || s.computed == 0,
            ErrorCode::kInternal, "verify: sequence {} does not run and has computed {} tokens", s.id, s.computed);
      if (s.state == Scheduler::State::kSibling)
        check(std::ranges::count(scheduler.at(s.leader).siblings, record) == 1, ErrorCode::kInternal,
              "verify: sequence {} is not a sibling of {}", s.id, scheduler.at(s.leader).id);
      if (!holds) continue;
      const size_t position = scheduler.position_of(record);
      check(position < scheduler.running_.size() && scheduler.running_[position] == record, ErrorCode::kInternal,
            "verify: sequence {} does not run in its place", s.id);
      check(scheduler.blocks_.length(s.table) == s.computed && s.sampled >= s.delivered() && s.sampled <= s.limit &&
                s.computed <= s.prompt_length + s.limit - 1,
            ErrorCode::kInternal, "verify: sequence {}: {} slots, {} computed, {} sampled, {} delivered, limit {}",
            s.id, scheduler.blocks_.length(s.table), s.computed, s.sampled, s.delivered(), s.limit);
    }
    check(waiting == scheduler.stats_.waiting &&
              slots + static_cast<int64_t>(scheduler.free_slots_.size()) == scheduler.options_.max_sequences,
          ErrorCode::kInternal, "verify: {} waiting ({} counted), {} slots used, {} free", waiting,
          scheduler.stats_.waiting, slots, scheduler.free_slots_.size());
    check(reserved == scheduler.reserved_, ErrorCode::kInternal, "verify: reserved blocks do not add up");
    for (size_t g = 0; g < static_cast<size_t>(scheduler.blocks_.groups()); ++g)
      check(scheduler.reserved_[g] <= scheduler.blocks_.options().groups[g].blocks, ErrorCode::kInternal,
            "verify: {} blocks of group {} reserved", scheduler.reserved_[g], g);
    if (scheduler.options_.policy == SchedulingPolicy::kNeverEvict)
      for (int g = 0; g < scheduler.blocks_.groups(); ++g)
        check(scheduler.blocks_.options().groups[static_cast<size_t>(g)].window > 0 ||
                  scheduler.blocks_.stats(g).used <= scheduler.reserved_[static_cast<size_t>(g)],
              ErrorCode::kInternal, "verify: {} blocks of group {} used, {} reserved", scheduler.blocks_.stats(g).used,
              g, scheduler.reserved_[static_cast<size_t>(g)]);
  }
};

}  // namespace octet
