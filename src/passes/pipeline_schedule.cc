#include "passes/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/error.h"

namespace octet {
namespace {

using Action = PipelineAction;
using Kind = PipelineAction::Kind;

constexpr int64_t kForwardTime = 1, kBackwardTime = 2;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Forwards and backwards of a stage in order.
std::vector<Action> compute_order(PipelineKind kind, int32_t p, int32_t s, int32_t chunks, int32_t micro_batches) {
  const int32_t total = chunks * micro_batches, round = p * chunks;
  const auto action = [&](Kind what, int32_t k) {
    const int32_t chunk = k % round / p, micro_batch = k / round * p + k % p;
    if (chunks == 1) return Action{.kind = what, .micro_batch = k};
    return Action{
        .kind = what, .chunk = what == Kind::kForward ? chunk : chunks - 1 - chunk, .micro_batch = micro_batch};
  };
  const int32_t behind = p - 1 - s;
  const int32_t warm_up = std::min(total, kind == PipelineKind::k1F1B ? behind : 2 * behind + (chunks - 1) * p);
  std::vector<Action> order;
  for (int32_t k = 0; k < total + warm_up; ++k) {
    if (k < total) order.push_back(action(Kind::kForward, k));
    if (k >= warm_up) order.push_back(action(Kind::kBackward, k - warm_up));
  }
  return order;
}

// Runs all stages in a time of its own, in which the earliest action that can run is the next of the one order.
class Timetable {
 public:
  Timetable(PipelineKind kind, int32_t p, int32_t chunks, int32_t micro_batches) : p_(p), pieces_(p * chunks) {
    for (int32_t s = 0; s < p; ++s) stages_.push_back({.order = compute_order(kind, p, s, chunks, micro_batches)});
    for (auto* boxes : {&out_, &in_})
      for (auto& direction : *boxes) direction.resize(static_cast<size_t>(pieces_));
  }

  std::vector<std::vector<Action>> actions() {
    while (transfer_or_compute()) {
    }
    std::vector<std::vector<Action>> all;
    for (Stage& stage : stages_) {
      check(stage.next == stage.order.size(), ErrorCode::kInternal, "pipeline: a schedule of {} pieces does not end",
            pieces_);
      all.push_back(std::move(stage.done));
    }
    return all;
  }

 private:
  struct Stage {
    std::vector<Action> order;
    size_t next = 0;
    int64_t free_at = 0;
    std::vector<Action> done = {};
  };
  struct Box {
    std::optional<int32_t> micro_batch;
    int64_t at = 0;  // when it was filled, or became free
  };

  int32_t piece_of(int32_t stage, const Action& action) const { return action.chunk * p_ + stage; }
  Box& box(std::array<std::vector<Box>, 2>& boxes, bool gradient, int32_t piece) {
    return boxes[gradient ? 1 : 0][static_cast<size_t>(piece)];
  }
  // The piece that gets what this one makes, or -1.
  int32_t target(bool gradient, int32_t piece) const {
    const int32_t to = gradient ? piece - 1 : piece + 1;
    return to < pieces_ ? to : -1;
  }

  int64_t start_of(int32_t s) {
    const Stage& stage = stages_[static_cast<size_t>(s)];
    if (stage.next == stage.order.size()) return kNever;
    const Action& action = stage.order[stage.next];
    const bool gradient = action.kind == Kind::kBackward;
    const int32_t piece = piece_of(s, action);
    int64_t start = stage.free_at;
    if (target(!gradient, piece) >= 0) {  // something comes from there
      const Box& in = box(in_, gradient, piece);
      if (in.micro_batch != action.micro_batch) return kNever;
      start = std::max(start, in.at);
    }
    if (target(gradient, piece) >= 0) {
      const Box& out = box(out_, gradient, piece);
      if (out.micro_batch) return kNever;
      start = std::max(start, out.at);
    }
    return start;
  }

  void compute(int32_t s, int64_t start) {
    Stage& stage = stages_[static_cast<size_t>(s)];
    const Action action = stage.order[stage.next++];
    const bool gradient = action.kind == Kind::kBackward;
    const int32_t piece = piece_of(s, action);
    stage.done.push_back(action);
    stage.free_at = start + (gradient ? kBackwardTime : kForwardTime);
    box(in_, gradient, piece) = {.micro_batch = std::nullopt, .at = stage.free_at};
    if (target(gradient, piece) >= 0)
      box(out_, gradient, piece) = {.micro_batch = action.micro_batch, .at = stage.free_at};
  }

  void transfer(bool gradient, int32_t from, int64_t at) {
    const int32_t to = target(gradient, from);
    Box &out = box(out_, gradient, from), &in = box(in_, gradient, to);
    const auto record = [&](Kind kind, int32_t piece, int32_t other) {
      stages_[static_cast<size_t>(piece % p_)].done.push_back({.kind = kind,
                                                               .gradient = gradient,
                                                               .chunk = piece / p_,
                                                               .micro_batch = *out.micro_batch,
                                                               .peer = other % p_});
    };
    record(Kind::kSend, from, to);
    record(Kind::kReceive, to, from);
    in = {.micro_batch = out.micro_batch, .at = at};
    out = {.micro_batch = std::nullopt, .at = at};
  }

  bool transfer_or_compute() {
    int64_t earliest = kNever;
    int32_t who = -1;
    bool moves = false, gradient = false;
    for (const bool direction : {false, true}) {
      for (int32_t from = 0; from < pieces_; ++from) {
        const int32_t to = target(direction, from);
        if (to < 0 || !box(out_, direction, from).micro_batch || box(in_, direction, to).micro_batch) continue;
        const int64_t at = std::max(box(out_, direction, from).at, box(in_, direction, to).at);
        if (at < earliest) earliest = at, who = from, moves = true, gradient = direction;
      }
    }
    for (int32_t s = 0; s < p_; ++s)
      if (const int64_t at = start_of(s); at < earliest) earliest = at, who = s, moves = false;
    if (who < 0) return false;
    moves ? transfer(gradient, who, earliest) : compute(who, earliest);
    return true;
  }

  int32_t p_, pieces_;
  std::vector<Stage> stages_;
  std::array<std::vector<Box>, 2> out_, in_;  // by direction and piece
};

// The lowest slot that is free at each forward.
std::vector<int32_t> assign_slots(std::vector<Action>& actions, int32_t chunks) {
  std::vector<std::vector<int32_t>> held(static_cast<size_t>(chunks));  // micro-batch by slot; -1: free
  for (Action& action : actions) {
    std::vector<int32_t>& slots = held[static_cast<size_t>(action.chunk)];
    if (action.kind == Kind::kForward) {
      auto place = std::ranges::find(slots, -1);
      if (place == slots.end()) place = slots.insert(place, -1);
      *place = action.micro_batch;
      action.slot = static_cast<int32_t>(place - slots.begin());
    } else if (action.kind == Kind::kBackward) {
      const auto place = std::ranges::find(slots, action.micro_batch);
      action.slot = static_cast<int32_t>(place - slots.begin());
      *place = -1;
    }
  }
  std::vector<int32_t> counts;
  for (const auto& slots : held) counts.push_back(static_cast<int32_t>(slots.size()));
  return counts;
}

void check_sizes(PipelineKind kind, int32_t p, int32_t s, int32_t chunks, int32_t micro_batches) {
  check(p > 0 && s >= 0 && s < p && chunks > 0 && micro_batches > 0, ErrorCode::kInvalidArgument,
        "pipeline: stage {} of {}, {} chunks, {} micro-batches: want sizes from 1 on", s, p, chunks, micro_batches);
  check(kind == PipelineKind::kInterleaved || chunks == 1, ErrorCode::kInvalidArgument,
        "parallel.chunks={}: 1F1B has one chunk a stage; several are interleaved", chunks);
  check(chunks == 1 || p > 1, ErrorCode::kInvalidArgument,
        "parallel.chunks={}: one stage is not cut further; want parallel.chunks=1, or parallel.pipeline from 2 on",
        chunks);
  check(chunks == 1 || micro_batches % p == 0, ErrorCode::kInvalidArgument,
        "parallel.chunks={}: {} micro-batches a data rank do not divide among {} stages; want a multiple of {}, or "
        "parallel.chunks=1",
        chunks, micro_batches, p, p);
}

}  // namespace

std::vector<PipelineSchedule> schedules(int32_t p, int32_t chunks, int32_t micro_batches) {
  const PipelineKind kind = chunks > 1 ? PipelineKind::kInterleaved : PipelineKind::k1F1B;
  check_sizes(kind, p, 0, chunks, micro_batches);
  std::vector<PipelineSchedule> all;
  for (std::vector<Action>& actions : Timetable(kind, p, chunks, micro_batches).actions()) {
    PipelineSchedule& made = all.emplace_back(PipelineSchedule{.actions = std::move(actions), .slots = {}});
    made.slots = assign_slots(made.actions, chunks);
  }
  return all;
}

PipelineSchedule schedule(PipelineKind kind, int32_t p, int32_t s, int32_t chunks, int32_t micro_batches) {
  check_sizes(kind, p, s, chunks, micro_batches);
  return std::move(schedules(p, chunks, micro_batches)[static_cast<size_t>(s)]);
}

std::vector<StageSeconds> simulate(const std::vector<PipelineSchedule>& stages, const std::vector<PieceSeconds>& pieces,
                                   Transfers transfers) {
  const auto p = static_cast<int32_t>(stages.size());
  std::vector<StageSeconds> times(stages.size());
  std::vector<size_t> next(stages.size());
  // By direction and piece: when the last transfer to it, or from it, has ended. Each has one place.
  std::array<std::vector<double>, 2> in, out;
  for (auto* places : {&in, &out})
    for (auto& direction : *places) direction.resize(pieces.size());
  const auto waiting = [&](int32_t s) -> const Action* {
    const auto i = static_cast<size_t>(s);
    return next[i] < stages[i].actions.size() ? &stages[i].actions[next[i]] : nullptr;
  };
  // Does what stage s is at, both sides of a transfer where it is the sender's turn.
  const auto run_one = [&](int32_t s) {
    const Action* action = waiting(s);
    if (action == nullptr || action->kind == Kind::kReceive) return false;
    StageSeconds& own = times[static_cast<size_t>(s)];
    const auto piece = static_cast<size_t>(action->chunk * p + s);
    const PieceSeconds& seconds = pieces[piece];
    if (action->kind == Kind::kSend) {
      const Action* other = waiting(action->peer);
      if (other == nullptr || other->kind != Kind::kReceive || other->peer != s) return false;
      StageSeconds& theirs = times[static_cast<size_t>(action->peer)];
      const double sending = action->gradient ? seconds.send_gradient : seconds.send;
      const double end = std::max(own.end, theirs.end) + sending;
      const size_t way = action->gradient ? 1 : 0;
      out[way][piece] = in[way][action->gradient ? piece - 1 : piece + 1] = end;
      if (transfers == Transfers::kInTurn) {
        own.end = theirs.end = end;
        own.transfers += sending, theirs.transfers += sending;
      }
      ++next[static_cast<size_t>(action->peer)];
    } else {
      const size_t way = action->kind == Kind::kBackward ? 1 : 0;
      const double work = (way == 1 ? seconds.backward : seconds.forward)[action->micro_batch > 0 ? 1 : 0];
      own.end = std::max({own.end, in[way][piece], out[way][piece]}) + work;
      own.work += work;
    }
    ++next[static_cast<size_t>(s)];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int32_t s = 0; s < p; ++s)
      while (run_one(s)) moved = true;
  }
  for (int32_t s = 0; s < p; ++s)
    check(waiting(s) == nullptr, ErrorCode::kInternal, "pipeline: stage {} of {} waits without end", s, p);
  return times;
}

}  // namespace octet
