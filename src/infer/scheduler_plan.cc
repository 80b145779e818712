// Contents of a step: decodes of running sequences, prefill chunks, admissions, preemptions.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "infer/scheduler.h"

namespace octet {

// Tokens the sequence can compute before another sample must be planned.
int64_t Scheduler::remaining(const SequenceRecord& s) const {
  if (!s.siblings.empty()) return s.fork_at - s.computed;
  if (s.drafted > 0 || (s.params.beams && s.sampled > s.delivered())) return 0;
  if (s.sampled == s.limit) return 0;
  return s.prompt_length + s.sampled - s.computed;
}

// Upper bound for its next sample: each sample planned and not yet delivered may add one.
int64_t Scheduler::adjusted_logits(const SequenceRecord& s) const {
  return std::min(s.adjusted + s.sampled - s.delivered(), s.params.max_adjusted);
}

// Tokens it can compute with the rows that are left, one kept for each decode; with one at least, so that the first
// sequence always proceeds. A token costs a row but where its row was planned before a preemption.
int64_t Scheduler::scorable(const SequenceRecord& s, const PlannedStep& planned) const {
  if (s.params.score_from == 0 || s.scored >= s.prompt_length - 1) return remaining(s);
  const int64_t least = std::min({planned.rows_left, planned.adjusted_left, int64_t{1}});
  const int64_t rows = std::min(planned.rows_left - planned.decodes_ahead, planned.adjusted_left - adjusted_logits(s));
  return std::max<int64_t>(s.scored - s.computed, 0) + std::max(rows, least);
}

// The rows of the entry's tokens before the prompt's last, which is sampled from.
void Scheduler::plan_scores(SequenceRecord& s, ScheduledSequence& entry, PlannedStep& planned) {
  const int64_t from = std::max(s.computed, s.scored), to = std::min(s.computed + entry.count, s.prompt_length - 1);
  if (from >= to) return;
  entry.scores_from = from;
  entry.scores = static_cast<int32_t>(to - from);
  s.scored = to;
  planned.rows_left -= entry.scores;
  planned.adjusted_left -= entry.scores;
}

// Drafts that it computes behind its next token.
int64_t Scheduler::drafts_now(const SequenceRecord& s, PlannedStep& planned) const {
  if (s.proposed_step != planned.plan.step || s.sampled != s.delivered()) return 0;
  const int64_t others = planned.decodes_ahead + 1, block_size = blocks_.options().block_size;
  const int64_t kept = static_cast<int64_t>(running_.size()) * block_size;  // a block for each sequence
  int64_t most = std::min({static_cast<int64_t>(s.proposed.size()) - 1, planned.drafts_left,
                           planned.tokens_left - others, planned.rows_left - others});
  most = std::min(most, blocks_.room(s.table, 1 + most + kept) - 1 - kept);
  const int64_t spare = std::min(planned.adjusted_spare, planned.adjusted_left - adjusted_logits(s));
  int64_t drafts = 0, adjusted = 0;
  for (; drafts < most; ++drafts) {
    const int64_t more = std::min(s.adjusted + drafts + 1, s.params.max_adjusted);
    if (more > 0 && adjusted + more > spare) break;
    adjusted += more;
  }
  planned.adjusted_spare -= adjusted;
  planned.drafts_left -= drafts;
  return drafts;
}

bool Scheduler::may_sample(const SequenceRecord& s, const PlannedStep& planned) const {
  return planned.rows_left > 0 && adjusted_logits(s) <= planned.adjusted_left;
}

const StepPlan& Scheduler::schedule(double now) {
  check(in_flight() < kMaxInFlight, ErrorCode::kInternal, "scheduler: {} steps in flight (at most {}): commit first",
        in_flight(), kMaxInFlight);
  expire(now);
  PlannedStep& planned = planned_steps_[static_cast<size_t>(planned_step_ + 1) % planned_steps_.size()];
  StepPlan& plan = planned.plan;
  plan.step = planned_step_ + 1;
  plan.decodes = plan.tokens = plan.logit_rows = 0;
  plan.sequences.clear();
  plan.copies.clear();
  plan.preempted.clear();
  planned.records.clear();
  planned.chunks.clear();
  planned.chunk_records.clear();
  planned.tokens_left = options_.token_budget;
  planned.rows_left = options_.max_logit_rows;
  planned.adjusted_left = options_.max_adjusted;
  planned.promised = {};
  plan_running(planned);
  admit(planned);
  plan.decodes = static_cast<int64_t>(plan.sequences.size());
  plan.sequences.insert(plan.sequences.end(), planned.chunks.begin(), planned.chunks.end());
  planned.records.insert(planned.records.end(), planned.chunk_records.begin(), planned.chunk_records.end());
  if (adapters_ != nullptr) sort_by_adapter(planned);
  if (!plan.empty()) {
    planned_step_ = plan.step;
    ++stats_.steps;
    stats_.computed_tokens += plan.tokens;
  }
  stats_.running = static_cast<int64_t>(running_.size());
  return plan;
}

// Beams of a search, which have one adapter, stay together.
void Scheduler::sort_by_adapter(PlannedStep& planned) const {
  std::vector<ScheduledSequence>& entries = planned.plan.sequences;
  const auto earlier = [&](size_t a, size_t b) { return entries[a].adapter_slot < entries[b].adapter_slot; };
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (std::ranges::is_sorted(order, earlier)) return;
  std::ranges::stable_sort(order, earlier);
  std::vector<ScheduledSequence> sorted;
  std::vector<int32_t> records;
  for (const size_t i : order) sorted.push_back(entries[i]), records.push_back(planned.records[i]);
  entries.swap(sorted);
  planned.records.swap(records);
}

// In scheduling order, so that no sequence takes a block that an earlier one needs; decodes reserve their share of the
// token budget before any prefill chunk.
void Scheduler::plan_running(PlannedStep& planned) {
  for (size_t i = 0; i < running_.size(); ++i) fork_if_ready(running_[i]);
  planned.decodes_ahead = 0;
  planned.adjusted_spare = options_.max_adjusted;
  for (int32_t record : running_) {
    const SequenceRecord& s = at(record);
    if (s.drafted == 0) blocks_.slide(s.table);  // not on tokens that may be taken back
    planned.adjusted_spare -= adjusted_logits(s);
  }
  for (size_t i = 0; i < running_.size(); i += planned_together(i)) planned.decodes_ahead += decodes_at(i);
  planned.drafts_left = step_draft_room();
  may_preempt_ = options_.policy == SchedulingPolicy::kMaxUtilization;
  for (size_t i = 0; i < running_.size();) {
    planned.decodes_ahead -= decodes_at(i);
    plan_at(i, planned);
    for (const size_t end = i + planned_together(i); i < end; ++i)
      if (remaining(at(running_[i])) > 1) promise(at(running_[i]), planned);
  }
  may_preempt_ = false;
}

void Scheduler::plan_at(size_t position, PlannedStep& planned) {
  const SequenceRecord& s = at(running_[position]);
  if (s.params.beams && s.siblings.empty())
    plan_beams(position, planned);
  else
    plan_one(position, planned);
}

void Scheduler::plan_one(size_t position, PlannedStep& planned) {
  const int32_t record = running_[position];
  const int64_t count = remaining(at(record));
  if (count <= 0) return;
  if (count > 1) return plan_chunk(position, planned);
  const bool samples = at(record).siblings.empty();
  if (planned.tokens_left < 1 || (samples && !may_sample(at(record), planned))) return;
  if (!make_room(position, 1, planned)) return;
  const int64_t drafts = samples ? drafts_now(at(record), planned) : 0;
  plan_tokens(record, 1 + drafts, planned, drafts);
}

void Scheduler::plan_chunk(size_t position, PlannedStep& planned) {
  const int32_t record = running_[position];
  const SequenceRecord& s = at(record);
  const bool beam = s.params.beams && s.siblings.empty();  // its last token is computed with those of all beams
  const int64_t block_size = blocks_.options().block_size, left = remaining(s) - (beam ? 1 : 0);
  const auto whole_blocks = [&](int64_t count) { return (s.computed + count) / block_size * block_size - s.computed; };
  int64_t count = std::min({left, planned.tokens_left - planned.decodes_ahead, scorable(s, planned)});
  if (count == left && s.siblings.empty() && !beam && !may_sample(s, planned)) --count;
  const int64_t whole = count < left ? whole_blocks(count) : count;
  if (whole > 0 || s.params.score_from == 0) count = whole;  // a step may have fewer rows than a block has tokens
  if (count <= 0 || !make_room(position, std::min(left, block_size), planned)) return;
  if (const int64_t room = blocks_.room(s.table, count); room < count) count = whole_blocks(room);
  if (count > 0) plan_tokens(record, count, planned);
}

// True when `tokens` more fit now, for each of `count` sequences. Otherwise later sequences are preempted until they
// will fit once the steps in flight are done: blocks used by those steps are free only then.
bool Scheduler::make_room(size_t position, int64_t tokens, PlannedStep& planned, size_t count) {
  const SequenceRecord& s = at(running_[position]);
  const auto has_room = [&](bool with_deferred) {
    return fits(std::span(running_).subspan(position, count), tokens, with_deferred);
  };
  while (!has_room(false)) {
    const bool last = s.params.beams ? at(running_.back()).family == s.family : position + 1 == running_.size();
    if (!may_preempt_ || last || has_room(true)) return false;
    preempt(running_.back(), planned);
  }
  return true;
}

void Scheduler::preempt(int32_t record, PlannedStep& planned) {
  SequenceRecord& s = at(record);
  if (s.params.beams && s.siblings.empty()) return preempt_beams(planned);
  if (remaining(s) == 1) --planned.decodes_ahead;
  leave(record);
  s.computed = 0;
  enqueue(record);
  planned.plan.preempted.push_back(s.id);
  ++stats_.preemptions;
}

// The rows of its last token and its drafts.
void Scheduler::plan_sample(SequenceRecord& s, int64_t drafts, PlannedStep& planned) {
  for (int64_t i = 0; i <= drafts; ++i, ++s.sampled) planned.adjusted_left -= adjusted_logits(s);
  planned.plan.logit_rows += 1 + drafts;
  planned.rows_left -= 1 + drafts;
  s.drafted = drafts;
  stats_.drafted_tokens += drafts;
}

// `drafts`: the last of the `count` tokens.
void Scheduler::plan_tokens(int32_t record, int64_t count, PlannedStep& planned, int64_t drafts) {
  SequenceRecord& s = at(record);
  StepPlan& plan = planned.plan;
  check(blocks_.allocate(s.table, count, plan.step, plan.copies), ErrorCode::kInternal,
        "scheduler: no room for {} tokens of sequence {}", count, s.id);
  ScheduledSequence entry{.id = s.id, .slot = s.slot, .table = s.table, .first_position = s.computed};
  entry.count = static_cast<int32_t>(count);
  entry.drafts = static_cast<int32_t>(drafts);
  entry.samples = s.siblings.empty() && count - drafts == remaining(s);
  if (s.params.beams && entry.samples) entry.beams = static_cast<int32_t>(s.params.n);
  if (drafts > 0)
    entry.ids = std::span(s.proposed).first(static_cast<size_t>(count));
  else if (s.computed < static_cast<int64_t>(s.tokens.size()))
    entry.ids = std::span(s.tokens).subspan(static_cast<size_t>(s.computed), static_cast<size_t>(count));
  for (int g = 0; g < blocks_.groups(); ++g) entry.changed[static_cast<size_t>(g)] = blocks_.take_changed(s.table, g);
  if (adapters_ != nullptr && s.params.adapter != 0) {
    entry.adapter = s.params.adapter;
    entry.adapter_slot = adapters_->slot(s.params.adapter);
  }
  if (s.params.score_from > 0) plan_scores(s, entry, planned);
  (count == 1 ? plan.sequences : planned.chunks).push_back(entry);
  (count == 1 ? planned.records : planned.chunk_records).push_back(record);
  const int64_t block_size = blocks_.options().block_size;
  const bool fills_block = s.computed / block_size != (s.computed + count) / block_size;
  stats_.recomputed_tokens += std::max<int64_t>(0, std::min(s.furthest, s.computed + count) - s.computed);
  s.computed += count;
  s.furthest = std::max(s.furthest, s.computed);
  if (fills_block) blocks_.publish(s.table, s.tokens);
  plan.tokens += count;
  planned.tokens_left -= count;
  if (entry.samples) plan_sample(s, drafts, planned);
}

// Forks when all of the prompt but its last token is computed, or what beams have in common; each of the n sequences
// computes that token itself.
bool Scheduler::fork_if_ready(int32_t record) {
  SequenceRecord& s = at(record);
  if (s.siblings.empty() || s.computed < s.fork_at) return false;
  for (int32_t sibling : s.siblings) {
    SequenceRecord& fork = at(sibling);
    fork.table = blocks_.fork(s.table);
    fork.computed = s.computed;
    fork.furthest = s.furthest;
    fork.leader = -1;
    insert_running(sibling);
  }
  s.siblings.clear();
  return true;
}

// --- admission
// --------------------------------------------------------------------------------------------------------

void Scheduler::admit(PlannedStep& planned) {
  if (!planned.plan.preempted.empty()) return;
  planned.decodes_ahead = 0;
  while (!waiting_.empty() && planned.tokens_left > 0) {
    const int32_t record = by_id_.at(waiting_.begin()->second);
    if (!try_admit(record, planned)) return;
    const auto family = at(record).siblings.size();
    const size_t count = fork_if_ready(record) ? family + 1 : 1;
    const size_t first = position_of(record);
    for (size_t i = first; i < first + count; i += planned_together(i)) plan_at(i, planned);
    if (remaining(at(record)) > 1) promise(at(record), planned);
  }
}

bool Scheduler::try_admit(int32_t record, PlannedStep& planned) {
  SequenceRecord& s = at(record);
  if (s.sampled > s.delivered() || s.siblings.size() + 1 > free_slots_.size()) return false;
  if (adapters_ != nullptr && s.params.adapter != 0 &&
      !adapters_->make_resident(s.params.adapter, s.params.adapter_class))
    return false;
  if (options_.policy == SchedulingPolicy::kNeverEvict) {
    if (!reserve(s)) return false;
    open_table(s);
  } else {
    const Blocks free = free_for_prompts(planned);
    const auto nothing_came_free = [&] {
      for (size_t g = 0; g < free.size(); ++g)
        if (free[g] > blocked_free_[g]) return false;
      return true;
    };
    // Matching a prompt with 32k tokens in the cache costs 0.5 ms: not in every step.
    if (s.id == blocked_ && nothing_came_free()) return false;
    blocked_ = -1;
    open_table(s);
    if (!fits_now(s, planned)) {
      blocked_ = s.id;
      blocked_free_ = free;
      blocks_.free(s.table);
      s.table = -1;
      s.computed = 0;
      return false;
    }
  }
  start(record);
  return true;
}

// kNeverEvict: reserves the blocks of all its sequences at their maximum length, or none.
bool Scheduler::reserve(SequenceRecord& s) {
  const auto n = static_cast<int64_t>(s.siblings.size()) + 1;
  Blocks own = {}, shared = {};
  request_blocks(s.prompt_length, s.limit, n, own, shared);
  const auto& groups = blocks_.options().groups;
  for (size_t g = 0; g < groups.size(); ++g)
    if (reserved_[g] + n * own[g] + shared[g] > groups[g].blocks) return false;
  for (size_t g = 0; g < groups.size(); ++g) reserved_[g] += n * own[g] + shared[g];
  s.own = own;
  s.shared = shared;
  for (int32_t sibling : s.siblings) at(sibling).own = own;
  return true;
}

void Scheduler::promise(const SequenceRecord& s, PlannedStep& planned) const {
  for (int g = 0; g < blocks_.groups(); ++g) {
    const int64_t want = prompt_blocks(s, g) - blocks_.held(s.table, g);
    planned.promised[static_cast<size_t>(g)] += std::max<int64_t>(0, want);
  }
}

// Blocks not promised to other prompts, minus one for every running sequence, so that an admitted prompt is not
// preempted at once.
Scheduler::Blocks Scheduler::free_for_prompts(const PlannedStep& planned) const {
  Blocks free = {};
  for (int g = 0; g < blocks_.groups(); ++g) {
    const BlockStats& stats = blocks_.stats(g);
    free[static_cast<size_t>(g)] = stats.free + stats.cached + stats.deferred -
                                   planned.promised[static_cast<size_t>(g)] - static_cast<int64_t>(running_.size());
  }
  return free;
}

// kMaxUtilization: whether the whole prompt fits.
bool Scheduler::fits_now(const SequenceRecord& s, const PlannedStep& planned) const {
  const Blocks free = free_for_prompts(planned);
  for (int g = 0; g < blocks_.groups(); ++g)
    if (prompt_blocks(s, g) - blocks_.held(s.table, g) > free[static_cast<size_t>(g)]) return false;
  return true;
}

void Scheduler::open_table(SequenceRecord& s) {
  s.table = blocks_.create(s.params.adapter, s.params.salt);
  const std::span tokens(s.tokens);  // of beams not beyond what all have in common
  int64_t most = s.siblings.empty() ? std::ssize(tokens) : s.fork_at + 1;
  if (s.params.score_from > 0 && s.scored < s.prompt_length - 1)
    most = s.scored + 1;  // rows need their tokens computed
  s.computed = blocks_.match(s.table, tokens.first(static_cast<size_t>(most)));
}

void Scheduler::start(int32_t record) {
  dequeue(record);
  SequenceRecord& s = at(record);
  stats_.reused_tokens += s.computed;
  s.slot = free_slots_.back();
  free_slots_.pop_back();
  for (int32_t sibling : s.siblings) {
    at(sibling).slot = free_slots_.back();
    free_slots_.pop_back();
  }
  insert_running(record);
}

}  // namespace octet
