// Every schedule run by a simulator that knows nothing of how it was made: blocking transfers, exact slots, the bubble.
#include "passes/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"

namespace octet {
namespace {

using Kind = PipelineAction::Kind;

PipelineKind kind_of(int32_t chunks) { return chunks == 1 ? PipelineKind::k1F1B : PipelineKind::kInterleaved; }

std::vector<PipelineSchedule> all_stages(int32_t p, int32_t chunks, int32_t micro_batches) {
  std::vector<PipelineSchedule> stages;
  for (int32_t s = 0; s < p; ++s) stages.push_back(schedule(kind_of(chunks), p, s, chunks, micro_batches));
  return stages;
}

// Stages that do one action after the other; a send ends when the other end has come to its receive. Returns how many
// actions were left when nothing moved any more. Nobody chooses: what a stage can do stays possible whatever the others
// do first, so that one order of running stands for all, and for sends that do not block.
size_t run_blocking(const std::vector<PipelineSchedule>& stages) {
  std::vector<size_t> at(stages.size());
  const auto next = [&](size_t s) -> const PipelineAction* {
    return at[s] < stages[s].actions.size() ? &stages[s].actions[at[s]] : nullptr;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages.size(); ++s) {
      const PipelineAction* action = next(s);
      if (action == nullptr || action->kind == Kind::kReceive) continue;
      if (action->kind == Kind::kSend) {
        const auto to = static_cast<size_t>(action->peer);
        const PipelineAction* other = next(to);
        if (other == nullptr || other->kind != Kind::kReceive || other->peer != static_cast<int32_t>(s)) continue;
        const auto p = static_cast<int32_t>(stages.size());  // what one end calls a piece the other does too
        const int32_t from = action->chunk * p + static_cast<int32_t>(s), piece = other->chunk * p + action->peer;
        EXPECT_EQ(piece, action->gradient ? from - 1 : from + 1);
        EXPECT_EQ(other->gradient, action->gradient);
        EXPECT_EQ(other->micro_batch, action->micro_batch);
        ++at[to];
      }
      ++at[s];
      moved = true;
    }
  }
  size_t left = 0;
  for (size_t s = 0; s < stages.size(); ++s) left += stages[s].actions.size() - at[s];
  return left;
}

// Each piece of each micro-batch once in each direction, after what it needs has come and before it is sent on; a place
// that is filled is not filled again before it has been read. Slots are not shared, and as many as are used at once.
void check_stage(const PipelineSchedule& stage, int32_t p, int32_t s, int32_t chunks, int32_t micro_batches) {
  using Place = std::tuple<bool, int32_t>;  // direction, chunk
  std::map<Place, int32_t> in, out;
  std::set<std::tuple<bool, int32_t, int32_t>> done;
  std::vector<std::map<int32_t, int32_t>> flying(static_cast<size_t>(chunks));  // slot, micro-batch
  std::vector<int32_t> most(static_cast<size_t>(chunks));
  for (const PipelineAction& a : stage.actions) {
    const int32_t piece = a.chunk * p + s;
    const bool computes = a.kind == Kind::kForward || a.kind == Kind::kBackward;
    const bool gradient = computes ? a.kind == Kind::kBackward : a.gradient;
    const Place place{gradient, a.chunk};
    if (a.kind == Kind::kReceive) {
      EXPECT_TRUE(in.emplace(place, a.micro_batch).second);
      EXPECT_EQ(a.peer, (piece + (gradient ? 1 : p - 1)) % p);
    } else if (a.kind == Kind::kSend) {
      EXPECT_EQ(out.at(place), a.micro_batch);
      out.erase(place);
      EXPECT_EQ(a.peer, (piece + (gradient ? p - 1 : 1)) % p);
    } else {
      EXPECT_TRUE(done.emplace(gradient, a.chunk, a.micro_batch).second);
      const bool first = piece == 0, last = piece == p * chunks - 1;
      if (!(gradient ? last : first)) {
        EXPECT_EQ(in.at(place), a.micro_batch);
        in.erase(place);
      }
      if (!(gradient ? first : last)) {
        EXPECT_TRUE(out.emplace(place, a.micro_batch).second);
      }
      auto& own = flying[static_cast<size_t>(a.chunk)];
      if (gradient) {
        EXPECT_EQ(own.at(a.slot), a.micro_batch);
        own.erase(a.slot);
      } else {
        EXPECT_TRUE(own.emplace(a.slot, a.micro_batch).second);
        auto& count = most[static_cast<size_t>(a.chunk)];
        count = std::max(count, static_cast<int32_t>(own.size()));
      }
    }
  }
  EXPECT_TRUE(in.empty() && out.empty());
  EXPECT_EQ(std::ssize(done), 2 * chunks * micro_batches);
  EXPECT_EQ(stage.slots, most);
}

// The seconds of a step where a forward of a chunk takes 1, a backward 2, sends go by themselves and take none.
int64_t makespan(const std::vector<PipelineSchedule>& stages) {
  const auto p = static_cast<int32_t>(stages.size());
  std::map<std::tuple<bool, int32_t, int32_t>, int64_t> made;  // direction, piece, micro-batch: when
  std::vector<size_t> at(stages.size());
  std::vector<int64_t> clock(stages.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (int32_t s = 0; s < p; ++s) {
      const auto i = static_cast<size_t>(s);
      for (; at[i] < stages[i].actions.size(); ++at[i], moved = true) {
        const PipelineAction& a = stages[i].actions[at[i]];
        const int32_t piece = a.chunk * p + s;
        if (a.kind == Kind::kForward || a.kind == Kind::kBackward) {
          const bool gradient = a.kind == Kind::kBackward;
          const auto needs = made.find({gradient, piece + (gradient ? 1 : -1), a.micro_batch});
          if (needs != made.end()) clock[i] = std::max(clock[i], needs->second);
          clock[i] += gradient ? 2 : 1;
          made[{gradient, piece, a.micro_batch}] = clock[i];
        } else if (a.kind == Kind::kReceive &&
                   !made.contains({a.gradient, piece + (a.gradient ? 1 : -1), a.micro_batch})) {
          break;
        }
      }
    }
  }
  return *std::ranges::max_element(clock);
}

TEST(PipelineSchedule, EndsWithSendsThatBlockInExactSlots) {
  for (int32_t p = 1; p <= 8; ++p) {
    for (int32_t chunks = 1; chunks <= 4; ++chunks) {
      for (int32_t m = 1; m <= 32; ++m) {
        if (chunks > 1 && (p == 1 || m % p != 0)) continue;
        SCOPED_TRACE(testing::Message() << p << " stages, " << chunks << " chunks, " << m << " micro-batches");
        const std::vector<PipelineSchedule> stages = all_stages(p, chunks, m);
        ASSERT_EQ(run_blocking(stages), 0U);
        for (int32_t s = 0; s < p; ++s) {
          check_stage(stages[static_cast<size_t>(s)], p, s, chunks, m);
          if (chunks == 1) {
            ASSERT_EQ(stages[static_cast<size_t>(s)].slots[0], std::min(m, p - s));
          }
        }
        const int64_t work = 3 * chunks * m;  // (1 + bubble) times this, in whole numbers
        ASSERT_EQ(makespan(stages), work + 3 * (p - 1));
        ASSERT_DOUBLE_EQ(pipeline_bubble(p, chunks, m), 3.0 * (p - 1) / static_cast<double>(work));
        if (HasFailure()) return;
      }
    }
  }
}

TEST(PipelineSchedule, InterleavedWithOneChunkIs1F1B) {
  for (int32_t p = 1; p <= 8; ++p) {
    for (int32_t m = 1; m <= 32; ++m) {
      for (int32_t s = 0; s < p; ++s) {
        const PipelineSchedule one = schedule(PipelineKind::kInterleaved, p, s, 1, m);
        EXPECT_EQ(one.actions, schedule(PipelineKind::k1F1B, p, s, 1, m).actions) << p << ", " << s << ", " << m;
      }
    }
  }
}

// Where all pieces take the same time and transfers none, what goes beside computing leaves the bubble of the formula;
// in turn with it there is more, and a transfer's own seconds are those of two stages.
TEST(PipelineSchedule, SimulatedStagesHaveTheBubbleOfTheFormula) {
  for (const auto& [p, chunks, m] : {std::array{1, 1, 3}, {4, 1, 8}, {4, 2, 8}, {8, 3, 16}, {3, 1, 2}}) {
    SCOPED_TRACE(testing::Message() << p << " stages, " << chunks << " chunks, " << m << " micro-batches");
    const std::vector<PipelineSchedule> stages = schedules(p, chunks, m);
    const std::vector<PieceSeconds> pieces(static_cast<size_t>(p * chunks), {.forward = {1, 1}, .backward = {2, 2}});
    const double work = 3.0 * chunks * m;
    double beside = 0, in_turn = 0;
    for (const StageSeconds& stage : simulate(stages, pieces, Transfers::kBeside)) beside = std::max(beside, stage.end);
    for (const StageSeconds& stage : simulate(stages, pieces)) {
      EXPECT_EQ(stage.work, work);
      EXPECT_EQ(stage.transfers, 0);
      in_turn = std::max(in_turn, stage.end);
    }
    EXPECT_DOUBLE_EQ(beside / work - 1, pipeline_bubble(p, chunks, m));
    EXPECT_GE(in_turn, beside);
  }
}

// Two stages and one micro-batch, by hand.
TEST(PipelineSchedule, SimulatedTransfersTakeBothStages) {
  const std::vector<PipelineSchedule> stages = schedules(2, 1, 1);
  const std::vector<PieceSeconds> pieces = {{.forward = {1, 9}, .backward = {2, 9}, .send = 10},
                                            {.forward = {4, 9}, .backward = {8, 9}, .send_gradient = 20}};
  const std::vector<StageSeconds> times = simulate(stages, pieces);
  EXPECT_EQ(times[0].end, 1 + 10 + 4 + 8 + 20 + 2);
  EXPECT_EQ(times[1].end, 1 + 10 + 4 + 8 + 20);
  EXPECT_EQ(times[0].transfers, 30);
  EXPECT_EQ(times[1].transfers, 30);
  EXPECT_EQ(times[0].work, 3);
  EXPECT_EQ(simulate(stages, pieces, Transfers::kBeside)[0].end, times[0].end);
}

TEST(PipelineSchedule, RunningBlockedFindsADeadlock) {
  std::vector<PipelineSchedule> stages = all_stages(2, 1, 4);
  // Both ends of the steady state's transfers in the order in which each would like them.
  auto& actions = stages[0].actions;
  const auto send =
      std::ranges::find_if(actions, [](const PipelineAction& a) { return a.kind == Kind::kReceive && a.gradient; });
  ASSERT_NE(send, actions.end());
  std::rotate(actions.begin(), send, send + 1);
  EXPECT_GT(run_blocking(stages), 0U);
}

std::string error_of(PipelineKind kind, int32_t p, int32_t s, int32_t chunks, int32_t m) {
  try {
    schedule(kind, p, s, chunks, m);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "";
}

TEST(PipelineSchedule, RefusesWhatHasNone) {
  EXPECT_NE(error_of(PipelineKind::k1F1B, 4, 0, 2, 8).find("one chunk a stage"), std::string::npos);
  EXPECT_NE(error_of(PipelineKind::kInterleaved, 1, 0, 2, 8).find("want parallel.chunks=1"), std::string::npos);
  EXPECT_NE(error_of(PipelineKind::kInterleaved, 4, 0, 2, 6).find("want a multiple of 4"), std::string::npos);
  EXPECT_NE(error_of(PipelineKind::k1F1B, 4, 4, 1, 8).find("stage 4 of 4"), std::string::npos);
}

}  // namespace
}  // namespace octet
