#include "infer/block_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "infer/testing/audit.h"

namespace octet {
namespace {

std::vector<int32_t> iota(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

BlockManagerOptions one_group(int32_t blocks, int32_t block_size = 4, int64_t window = 0) {
  return {.groups = {{.window = window, .blocks = blocks}}, .block_size = block_size};
}

// A table with the tokens in it, computed in `step`.
TableId computed(BlockManager& m, const std::vector<int32_t>& tokens, int64_t step = 0, uint64_t salt = 0) {
  std::vector<BlockCopy> copies;
  const TableId table = m.create(0, salt);
  const int64_t reused = m.match(table, tokens);
  EXPECT_TRUE(m.allocate(table, static_cast<int64_t>(tokens.size()) - reused, step, copies));
  EXPECT_TRUE(copies.empty());
  m.publish(table, tokens);
  return table;
}

TEST(BlockManager, AllocatesInAllGroupsOrNone) {
  BlockManager m({.groups = {{.blocks = 8}, {.window = 8, .blocks = 2}}, .block_size = 4});
  std::vector<BlockCopy> copies;
  const TableId a = m.create();
  EXPECT_EQ(m.room(a, 100), 8);
  EXPECT_FALSE(m.allocate(a, 9, 0, copies));
  EXPECT_EQ(m.length(a), 0);
  EXPECT_EQ(m.stats(0).used + m.stats(1).used, 0);
  EXPECT_TRUE(m.allocate(a, 8, 0, copies));
  EXPECT_EQ(m.stats(0).used, 2);
  EXPECT_EQ(m.room(a, 100), 0);
  m.free(a);
  m.step_done(0);
  EXPECT_EQ(m.stats(0).free, 8);
  Audit::verify(m);
}

TEST(BlockManager, BlocksReturnWhenTheStepThatUsedThemIsDone) {
  BlockManager m(one_group(2));
  std::vector<BlockCopy> copies;
  const TableId a = m.create();
  ASSERT_TRUE(m.allocate(a, 8, 7, copies));
  m.free(a);
  const TableId b = m.create();
  EXPECT_EQ(m.stats(0).deferred, 2);
  EXPECT_EQ(m.room(b, 8), 0);
  EXPECT_EQ(m.room(b, 8, true), 8);
  EXPECT_FALSE(m.allocate(b, 1, 8, copies));
  m.step_done(6);
  EXPECT_FALSE(m.allocate(b, 1, 8, copies));
  m.step_done(7);
  EXPECT_TRUE(m.allocate(b, 8, 8, copies));
  Audit::verify(m);
}

TEST(BlockManager, ReusesFullBlocksButNeverTheLastToken) {
  BlockManager m(one_group(8));
  const TableId a = computed(m, iota(8));
  const TableId b = m.create();
  EXPECT_EQ(m.match(b, iota(8)), 4);  // the 8th token must be computed, so its block cannot be taken
  EXPECT_EQ(m.blocks(b, 0)[0], m.blocks(a, 0)[0]);
  const TableId c = m.create();
  EXPECT_EQ(m.match(c, iota(9)), 8);
  const TableId d = m.create();
  EXPECT_EQ(m.match(d, iota(9, 1)), 0);
  EXPECT_EQ(m.stats(0).hits, 3);
  Audit::verify(m);
}

TEST(BlockManager, AdapterAndSaltSeparateContent) {
  BlockManager m(one_group(8));
  m.free(computed(m, iota(9), 0, 1));
  m.step_done(0);
  for (auto [adapter, salt, hit] : {std::tuple{0u, 0u, 0}, {0u, 1u, 8}, {1u, 1u, 0}}) {
    const TableId t = m.create(adapter, salt);
    EXPECT_EQ(m.match(t, iota(9)), hit);
    m.free(t);
  }
}

TEST(BlockManager, CollidingHashesAreToldApartByTokens) {
  // Two pairs of tokens whose states agree in the upper half; the third token cancels the difference of the lower.
  const auto next = [](uint64_t state, int32_t token) {
    const uint64_t h = (state ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
  };
  const auto state = [&](int32_t token) { return next(next(root_hash(0, 0), token), 7 * token); };
  std::map<uint64_t, int32_t> seen;
  std::vector<int32_t> x, y;
  for (int32_t i = 0; i < 1'000'000 && x.empty(); ++i) {
    const auto token = static_cast<int32_t>(mix64(static_cast<uint64_t>(i) + 1) & 0xFFFFFF);
    const auto [place, added] = seen.emplace(state(token) >> 32, token);
    if (added || place->second == token) continue;
    const int32_t other = place->second;
    x = {other, 7 * other, 5, 1};
    y = {token, 7 * token, 5 ^ static_cast<int32_t>(static_cast<uint32_t>(state(token) ^ state(other))), 1};
  }
  ASSERT_FALSE(x.empty());
  ASSERT_EQ(block_hash(root_hash(0, 0), std::span(x).first(3)), block_hash(root_hash(0, 0), std::span(y).first(3)));
  BlockManager m(one_group(8, 3));
  computed(m, x);
  const TableId other = m.create(), same = m.create();
  EXPECT_EQ(m.match(other, y), 0);
  EXPECT_EQ(m.match(same, x), 3);
}

TEST(BlockManager, EvictsLeastRecentlyUsedLeavesFirst) {
  BlockManager m(one_group(4));
  m.free(computed(m, iota(8)));       // blocks: parent P, leaf C
  m.free(computed(m, iota(8, 100)));  // later: Q, D
  m.step_done(0);
  EXPECT_EQ(m.stats(0).cached, 4);
  std::vector<BlockCopy> copies;
  const TableId t = m.create();
  ASSERT_TRUE(m.allocate(t, 4, 1, copies));  // takes C
  EXPECT_EQ(m.stats(0).evictions, 1);
  TableId probe = m.create();
  EXPECT_EQ(m.match(probe, iota(9)), 4);  // P is still there; this makes it the most recent
  m.free(probe);
  ASSERT_TRUE(m.allocate(t, 4, 1, copies));  // takes D
  probe = m.create();
  EXPECT_EQ(m.match(probe, iota(9, 100)), 4);
  m.free(probe);
  ASSERT_TRUE(m.allocate(t, 4, 1, copies));  // takes P: Q was used after it
  probe = m.create();
  EXPECT_EQ(m.match(probe, iota(9)), 0);
  EXPECT_EQ(m.match(probe, iota(9, 100)), 4);
  Audit::verify(m);
}

TEST(BlockManager, ForkCopiesASharedBlockBeforeWriting) {
  BlockManager m(one_group(8));
  std::vector<BlockCopy> copies;
  const TableId a = computed(m, iota(6));
  EXPECT_EQ(m.take_changed(a, 0), 0);
  const TableId b = m.fork(a), c = m.fork(a);
  EXPECT_EQ(m.stats(0).used, 2);
  const int32_t shared = m.blocks(a, 0)[1];
  ASSERT_TRUE(m.allocate(a, 1, 1, copies));
  ASSERT_TRUE(m.allocate(b, 1, 1, copies));
  ASSERT_TRUE(m.allocate(c, 1, 1, copies));  // the last owner writes in place
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].from, shared);
  EXPECT_EQ(copies[0].to, m.blocks(a, 0)[1]);
  EXPECT_EQ(m.take_changed(a, 0), 1);
  EXPECT_EQ(m.take_changed(a, 0), 2);
  EXPECT_EQ(m.blocks(c, 0)[1], shared);
  EXPECT_EQ(m.blocks(a, 0)[0], m.blocks(b, 0)[0]);
  EXPECT_EQ(m.stats(0).copies, 2);
  Audit::verify(m);
}

TEST(BlockManager, WindowGroupGivesBlocksBackAndReusesOnlyWhatIsVisible) {
  BlockManager m({.groups = {{.blocks = 16}, {.window = 5, .blocks = 16}}, .block_size = 4});
  std::vector<BlockCopy> copies;
  const std::vector<int32_t> tokens = iota(20);
  const TableId a = computed(m, std::vector(tokens.begin(), tokens.begin() + 8));
  ASSERT_TRUE(m.allocate(a, 1, 1, copies));  // position 8 sees 4..8: block 0 is behind the window
  EXPECT_EQ(m.blocks(a, 1)[0], kNoBlock);
  EXPECT_NE(m.blocks(a, 0)[0], kNoBlock);
  ASSERT_TRUE(m.allocate(a, 11, 2, copies));
  m.publish(a, tokens);
  m.step_done(2);
  m.slide(a);
  EXPECT_EQ(m.held(a, 1), 1);
  EXPECT_EQ(m.stats(1).cached, 4);
  m.free(a);
  const TableId b = m.create();
  EXPECT_EQ(m.match(b, iota(19)), 16);
  EXPECT_EQ(m.held(b, 0), 4);
  EXPECT_EQ(m.held(b, 1), 1);  // position 16 sees 12..16
  Audit::verify(m);
  // Without the block that position 16 can see, the longest prefix is the one before it.
  BlockManager few({.groups = {{.blocks = 16}, {.window = 5, .blocks = 5}}, .block_size = 4});
  few.free(computed(few, iota(16)));
  few.step_done(0);
  const TableId other = computed(few, iota(8, 100), 1);  // evicts the last two blocks in the window group? one: 5 - 4
  EXPECT_EQ(few.stats(1).evictions, 1);
  const TableId c = few.create();
  EXPECT_EQ(few.match(c, iota(19)), 12);
  few.free(c);
  few.free(other);
  Audit::verify(few);
}

TEST(BlockManager, ForgetsTheCache) {
  BlockManager m(one_group(8));
  m.free(computed(m, iota(9)));
  const TableId a = computed(m, iota(12, 50), 1);
  m.step_done(1);
  m.forget_cache();
  Audit::verify(m);
  EXPECT_EQ(m.stats(0).cached, 0);
  const TableId b = m.create();
  EXPECT_EQ(m.match(b, iota(9)), 0);
  m.publish(a, iota(12, 50));
  EXPECT_EQ(m.match(b, iota(12, 50)), 0);
}

TEST(BlockManager, RefusesBadOptions) {
  EXPECT_THROW(BlockManager({}), Error);
  EXPECT_THROW(BlockManager(one_group(0)), Error);
  EXPECT_THROW(BlockManager(one_group(4, 0)), Error);
  BlockManager m(one_group(1));
  EXPECT_THROW(m.free(0), Error);
}

// --- random traces
// ----------------------------------------------------------------------------------------------------

// A mirror of every table, and what each slot of each block holds. A token's KV depends on all tokens before it, so a
// slot's content is the hash of the prefix that ends there.
class Trace {
 public:
  Trace(BlockManagerOptions options, uint64_t seed) : m_(options), random_(seed), groups_(options.groups.size()) {
    for (size_t g = 0; g < groups_; ++g) {
      const auto blocks = static_cast<size_t>(options.groups[g].blocks);
      content_.emplace_back(blocks * static_cast<size_t>(options.block_size));
      owners_.emplace_back(blocks);
      last_use_.emplace_back(blocks, -1);
    }
    for (uint32_t p = 0; p < 6; ++p) prompts_.push_back(random_tokens(48, p));
  }

  void operations(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t what = random_.below(100);
      if (sequences_.empty() || what < 6)
        begin();
      else if (what < 60)
        append(pick());
      else if (what < 72)
        publish(pick());
      else if (what < 77)
        fork(pick());
      else if (what < 86)
        finish(pick());
      else if (what < 97)
        next_step();
      else
        check_content(pick());
      if (i % 512 == 0) Audit::verify(m_);
    }
    while (!sequences_.empty()) finish(sequences_.size() - 1);
    m_.step_done(step_);
    Audit::verify(m_);
    for (size_t g = 0; g < groups_; ++g) {
      const BlockStats& s = m_.stats(static_cast<int>(g));
      EXPECT_EQ(s.used + s.deferred, 0);
      EXPECT_EQ(s.free + s.cached, m_.options().groups[g].blocks);
      EXPECT_GT(s.hits, 0);
      EXPECT_GT(s.evictions, 0);
      EXPECT_GT(s.copies, 0);
    }
    EXPECT_GT(refused_, 0);
  }

 private:
  struct Sequence {
    TableId table;
    uint64_t salt;
    std::vector<int32_t> tokens;   // those to come too
    std::vector<uint64_t> prefix;  // content of position i
    std::vector<std::vector<int32_t>> mirror;
    int64_t fork_step = -1;  // may not be forked in the step that wrote it
  };

  std::vector<int32_t> random_tokens(size_t count, uint32_t seed) {
    Philox random(seed, 1);
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(2));
    return tokens;
  }
  size_t pick() { return random_.below(sequences_.size()); }
  uint64_t content(Sequence& s, int64_t position) {
    while (static_cast<int64_t>(s.prefix.size()) <= position)
      s.prefix.push_back(mix64((s.prefix.empty() ? s.salt + 1 : s.prefix.back()) * 3 +
                               static_cast<uint64_t>(s.tokens[s.prefix.size()])));
    return s.prefix[static_cast<size_t>(position)];
  }

  // Entries only grow, become -1 from the front, or change where a copy was ordered; owners follow.
  void follow(Sequence& s, const std::vector<BlockCopy>& copies, bool fresh) {
    for (size_t g = 0; g < groups_; ++g) {
      const auto now = m_.blocks(s.table, static_cast<int>(g));
      auto& before = s.mirror[g];
      for (size_t i = 0; i < std::max(now.size(), before.size()); ++i) {
        const int32_t was = i < before.size() ? before[i] : kNoBlock, is = i < now.size() ? now[i] : kNoBlock;
        if (was == is) continue;
        if (was != kNoBlock) --owners_[g][static_cast<size_t>(was)];
        if (is == kNoBlock) continue;
        ++owners_[g][static_cast<size_t>(is)];
        if (!fresh) continue;
        ASSERT_EQ(owners_[g][static_cast<size_t>(is)], 1) << "a block was given to two owners";
        ASSERT_LE(last_use_[g][static_cast<size_t>(is)], done_) << "a block was given away while a step uses it";
        const bool ordered = std::ranges::any_of(copies, [&](const BlockCopy& c) {
          return c.group == static_cast<int32_t>(g) && c.from == was && c.to == is;
        });
        ASSERT_TRUE(was == kNoBlock || ordered);
      }
      before.assign(now.begin(), now.end());
    }
  }

  void begin() {
    if (sequences_.size() > 24) return;
    Sequence s{.salt = random_.below(2)};
    s.table = m_.create(0, s.salt);
    s.tokens = prompts_[random_.below(prompts_.size())];
    s.tokens.resize(1 + random_.below(s.tokens.size()));
    s.mirror.resize(groups_);
    const int64_t reused = m_.match(s.table, s.tokens);
    ASSERT_LT(reused, static_cast<int64_t>(s.tokens.size()));
    ASSERT_EQ(reused, m_.length(s.table));
    follow(s, {}, false);
    sequences_.push_back(std::move(s));
    check_content(sequences_.size() - 1);
  }

  void append(size_t which) {
    Sequence& s = sequences_[which];
    const int64_t from = m_.length(s.table), n = 1 + static_cast<int64_t>(random_.below(random_.below(4) ? 2 : 12));
    if (from + n > 96) return;
    while (static_cast<int64_t>(s.tokens.size()) < from + n) s.tokens.push_back(static_cast<int32_t>(random_.below(2)));
    std::vector<BlockCopy> copies;
    const int64_t room = m_.room(s.table, n);
    const bool done = m_.allocate(s.table, n, step_, copies);
    ASSERT_TRUE(done || room < n);
    if (!done) {
      ++refused_;
      ASSERT_EQ(m_.length(s.table), from);
      ASSERT_TRUE(copies.empty());
      return follow(s, copies, true);
    }
    follow(s, copies, true);
    const auto size = static_cast<size_t>(m_.options().block_size);
    for (const BlockCopy& c : copies) {
      std::vector<uint64_t>& all = content_[static_cast<size_t>(c.group)];
      std::copy_n(all.begin() + c.from * static_cast<int64_t>(size), size,
                  all.begin() + c.to * static_cast<int64_t>(size));
      last_use_[static_cast<size_t>(c.group)][static_cast<size_t>(c.from)] = step_;
    }
    for (size_t g = 0; g < groups_; ++g) {
      for (int32_t block : s.mirror[g])
        if (block != kNoBlock) last_use_[g][static_cast<size_t>(block)] = step_;
      for (int64_t p = from; p < from + n; ++p) {
        const auto block = static_cast<size_t>(s.mirror[g][static_cast<size_t>(p) / size]);
        ASSERT_EQ(owners_[g][block], 1) << "a shared block is written";
        content_[g][block * size + static_cast<size_t>(p) % size] = content(s, p);
      }
    }
    s.fork_step = step_;
  }

  void check_content(size_t which) {
    Sequence& s = sequences_[which];
    const int64_t length = m_.length(s.table);
    const auto size = static_cast<size_t>(m_.options().block_size);
    for (size_t g = 0; g < groups_; ++g) {
      const int64_t window = m_.options().groups[g].window;
      for (int64_t p = window == 0 ? 0 : std::max<int64_t>(0, length - window + 1); p < length; ++p) {
        const int32_t block = s.mirror[g][static_cast<size_t>(p) / size];
        ASSERT_NE(block, kNoBlock);
        ASSERT_EQ(content_[g][static_cast<size_t>(block) * size + static_cast<size_t>(p) % size], content(s, p));
      }
    }
  }

  void publish(size_t which) {
    Sequence& s = sequences_[which];  // the last token may still be unknown
    m_.publish(s.table, std::span(s.tokens).first(s.tokens.size() - random_.below(2)));
  }

  void fork(size_t which) {
    if (sequences_[which].fork_step == step_ || sequences_.size() > 24) return;
    Sequence copy = sequences_[which];
    const auto length = static_cast<size_t>(m_.length(copy.table));
    copy.tokens.resize(std::max<size_t>(length, 1));
    copy.prefix.resize(std::min(copy.prefix.size(), copy.tokens.size()));
    copy.table = m_.fork(copy.table);
    for (auto& mirror : copy.mirror) mirror.clear();
    follow(copy, {}, false);
    sequences_.push_back(std::move(copy));
  }

  void finish(size_t which) {
    Sequence& s = sequences_[which];
    m_.free(s.table);
    for (size_t g = 0; g < groups_; ++g)
      for (int32_t block : s.mirror[g])
        if (block != kNoBlock) --owners_[g][static_cast<size_t>(block)];
    sequences_[which] = std::move(sequences_.back());
    sequences_.pop_back();
  }

  void next_step() {  // the device is one step behind, sometimes none
    ++step_;
    done_ = step_ - (random_.below(3) ? 2 : 1);
    m_.step_done(done_);
  }

  BlockManager m_;
  Philox random_;
  size_t groups_;
  std::vector<std::vector<uint64_t>> content_;
  std::vector<std::vector<int32_t>> owners_;
  std::vector<std::vector<int64_t>> last_use_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<Sequence> sequences_;
  int64_t step_ = 0, done_ = -1, refused_ = 0;
};

struct TraceCase {
  const char* name;
  BlockManagerOptions options;
};
void PrintTo(const TraceCase& c, std::ostream* out) {
  for (const auto& group : c.options.groups) *out << group.blocks << " blocks, window " << group.window << "; ";
  *out << "blocks of " << c.options.block_size;
}

class BlockManagerTrace : public testing::TestWithParam<TraceCase> {};

TEST_P(BlockManagerTrace, KeepsEveryInvariant) {
  Trace trace(GetParam().options, 20);
  trace.operations(250'000);
}

INSTANTIATE_TEST_SUITE_P(
    , BlockManagerTrace,
    testing::Values(TraceCase{"full", {.groups = {{.blocks = 70}}, .block_size = 4}},
                    TraceCase{"window", {.groups = {{.window = 9, .blocks = 60}}, .block_size = 4}},
                    TraceCase{"full_and_window",
                              {.groups = {{.blocks = 90}, {.window = 16, .blocks = 70}}, .block_size = 4}},
                    TraceCase{"three_groups",
                              {.groups = {{.window = 3, .blocks = 50}, {.blocks = 150}, {.window = 30, .blocks = 140}},
                               .block_size = 3}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace octet
