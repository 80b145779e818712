// Beams in the scheduler: the sequences of one search, planned, preempted, delivered and ended together.
#include <algorithm>

#include "base/error.h"
#include "infer/scheduler.h"

namespace octet {

// Records from this place of running_ on that are planned as one: the beams of a search, which follow one another, once
// what they have in common is computed.
size_t Scheduler::planned_together(size_t position) const {
  const SequenceRecord& s = at(running_[position]);
  return s.params.beams && s.siblings.empty() ? static_cast<size_t>(s.params.n) : 1;
}

// Single tokens that are computed there; of beams those of all, when each has only its last token to compute.
int64_t Scheduler::decodes_at(size_t position) const {
  const std::span together = std::span(running_).subspan(position, planned_together(position));
  const bool decodes = std::ranges::all_of(together, [this](int32_t record) { return remaining(at(record)) == 1; });
  return decodes ? std::ssize(together) : 0;
}

void Scheduler::plan_beams(size_t first, PlannedStep& planned) {
  const size_t end = first + planned_together(first);
  if (const int64_t beams = decodes_at(first); beams == 0) {
    for (size_t i = first; i < end; ++i)
      if (remaining(at(running_[i])) > 1) plan_chunk(i, planned);
  } else if (beams <= std::min(planned.tokens_left, planned.rows_left) &&
             beams * adjusted_logits(at(running_[first])) <= planned.adjusted_left &&
             make_room(first, 1, planned, end - first)) {
    for (size_t i = first; i < end; ++i) plan_tokens(running_[i], 1, planned);
  }
}

// Whether the sequence can be given so many tokens; of several each one token.
bool Scheduler::fits(std::span<const int32_t> records, int64_t tokens, bool with_deferred) const {
  if (records.size() == 1) return blocks_.room(at(records[0]).table, tokens, with_deferred) >= tokens;
  std::vector<TableId> tables;
  for (int32_t record : records) tables.push_back(at(record).table);
  return blocks_.room_for_each(tables, with_deferred);
}

// The last search of running_: its first beam waits, with the others as its siblings.
void Scheduler::preempt_beams(PlannedStep& planned) {
  const auto count = static_cast<size_t>(at(running_.back()).params.n);
  const std::vector<int32_t> beams(running_.end() - static_cast<ptrdiff_t>(count), running_.end());
  planned.decodes_ahead -= decodes_at(running_.size() - count);
  SequenceRecord& leader = at(beams.front());
  for (int32_t record : beams) {
    SequenceRecord& s = at(record);
    leave(record);
    s.computed = 0;
    s.state = State::kSibling;
    s.leader = beams.front();
    planned.plan.preempted.push_back(s.id);
  }
  leader.leader = -1;
  leader.siblings.assign(beams.begin() + 1, beams.end());
  leader.fork_at = common_tokens(leader);
  enqueue(beams.front());
  stats_.preemptions += static_cast<int64_t>(count);
}

// Tokens that all beams begin with, without their last ones.
int64_t Scheduler::common_tokens(const SequenceRecord& leader) const {
  int64_t common = std::ssize(leader.tokens) - 1;
  for (int32_t sibling : leader.siblings)
    common = std::min(common, std::ranges::mismatch(leader.tokens, at(sibling).tokens).in1 - leader.tokens.begin());
  return common;
}

// Blocks of a group that it holds when its prompt is computed, or, of beams that wait, when all of theirs are.
int64_t Scheduler::prompt_blocks(const SequenceRecord& s, int group) const {
  const int64_t size = blocks_.options().block_size;
  if (!s.params.beams || s.siblings.empty()) return blocks_.peak_blocks(group, s.computed + remaining(s), size);
  const bool shares = blocks_.options().groups[static_cast<size_t>(group)].window == 0;
  const int64_t all = blocks_.peak_blocks(group, std::ssize(s.tokens), size);
  return all + std::ssize(s.siblings) * (all - (shares ? s.fork_at / size : 0));
}

// Ends those that have not ended.
void Scheduler::end_beams(SequenceId family, FinishReason reason) {
  const int64_t count = find(family).params.n;
  for (SequenceId id = family; id < family + count; ++id) {
    const auto found = by_id_.find(id);
    if (found != by_id_.end() && at(found->second).state != State::kEnded) end(found->second, reason);
  }
}

// The tokens of a search's step; `first`: the id of its first beam.
void Scheduler::deliver_beams(std::span<const int32_t> beams, SequenceId first, std::span<const SampledToken> results) {
  SequenceRecord& leader = at(beams[0]);
  if (leader.id != first || leader.state == State::kEnded) {
    stats_.overrun_tokens += std::ssize(results);
    return;
  }
  for (size_t i = 0; i < results.size(); ++i)
    check(results[i].id == first + static_cast<SequenceId>(i) && results[i].end == results[0].end, ErrorCode::kInternal,
          "scheduler: result {} of the beams {} to {} is of sequence {}", i, first, first + std::ssize(beams) - 1,
          results[i].id);
  if (results[0].end != FinishReason::kNone) return end_beams(first, results[0].end);
  stats_.sampled_tokens += std::ssize(results);
  take_parents(beams, results);
  for (size_t i = 0; i < beams.size(); ++i) at(beams[i]).tokens.push_back(results[i].token);
  if (leader.delivered() == leader.limit)
    return end_beams(first, leader.limit < leader.params.max_tokens ? FinishReason::kContext : FinishReason::kLength);
  if (leader.state != State::kRunning) leader.fork_at = common_tokens(leader);  // preempted since
}

// Gives beams that go on with another one its tokens and, by forks, its blocks. What is read is copied first.
void Scheduler::take_parents(std::span<const int32_t> beams, std::span<const SampledToken> results) {
  struct Move {
    SequenceRecord* to;
    std::vector<int32_t> output;
    TableId table;
  };
  std::vector<Move> moves;
  const SequenceId first = results[0].id;
  for (size_t i = 0; i < beams.size(); ++i) {
    const SequenceId parent = results[i].parent;
    if (parent < 0 || parent == results[i].id) continue;
    check(parent >= first && parent < first + std::ssize(beams), ErrorCode::kInternal,
          "scheduler: beam {} follows sequence {}, of another search", results[i].id, parent);
    const SequenceRecord& from = at(beams[static_cast<size_t>(parent - first)]);
    moves.push_back({.to = &at(beams[i]),
                     .output = {from.tokens.begin() + from.prompt_length, from.tokens.end()},
                     .table = from.table >= 0 ? blocks_.fork(from.table) : -1});
  }
  for (const Move& move : moves) {
    move.to->tokens.resize(static_cast<size_t>(move.to->prompt_length));
    move.to->tokens.insert(move.to->tokens.end(), move.output.begin(), move.output.end());
    if (move.table < 0) continue;
    blocks_.free(move.to->table);
    move.to->table = move.table;
  }
}

}  // namespace octet
