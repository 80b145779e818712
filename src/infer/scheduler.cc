// Submission, commit and the end of sequences; scheduler_plan.cc plans the contents of a step.
#include "infer/scheduler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace octet {

Scheduler::Scheduler(SchedulerOptions options, BlockManager& blocks, AdapterSlots* adapters)
    : options_(options), blocks_(blocks), adapters_(adapters) {
  if (options_.max_logit_rows == 0) options_.max_logit_rows = options_.max_sequences;
  check(options_.context_length >= 2, ErrorCode::kInvalidArgument, "scheduler: context_length is {} (want >= 2)",
        options_.context_length);
  check(options_.max_sequences >= 1 && options_.max_logit_rows >= 1 && options_.max_queue >= 1,
        ErrorCode::kInvalidArgument, "scheduler: max_sequences {}, max_logit_rows {}, max_queue {} (want >= 1)",
        options_.max_sequences, options_.max_logit_rows, options_.max_queue);
  check(options_.token_budget >= blocks_.options().block_size, ErrorCode::kInvalidArgument,
        "scheduler: token_budget is {}, below one block of {} tokens", options_.token_budget,
        blocks_.options().block_size);
  check(options_.max_adjusted >= 0, ErrorCode::kInvalidArgument, "scheduler: max_adjusted is {} (want >= 0)",
        options_.max_adjusted);
  check(options_.ageing_seconds >= 0 && std::isfinite(options_.ageing_seconds), ErrorCode::kInvalidArgument,
        "scheduler: ageing_seconds is {} (want a finite number >= 0)", options_.ageing_seconds);
  for (int64_t slot = options_.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(static_cast<int32_t>(slot));
}

const Scheduler::SequenceRecord& Scheduler::find(SequenceId id) const {
  const auto found = by_id_.find(id);
  check(found != by_id_.end(), ErrorCode::kNotFound, "scheduler: no sequence {}", id);
  return at(found->second);
}

std::span<const int32_t> Scheduler::tokens(SequenceId id) const { return find(id).tokens; }

// --- submission
// -------------------------------------------------------------------------------------------------------

int64_t Scheduler::output_limit(const SequenceParams& params, int64_t prompt_length) const {
  return std::min(params.max_tokens, options_.context_length + (params.scores_only ? 1 : 0) - prompt_length);
}

// Blocks a request needs at its maximum length: `own` for each of its n sequences, `shared` once.
void Scheduler::request_blocks(int64_t prompt_length, int64_t limit, int64_t n, Blocks& own, Blocks& shared) const {
  const int64_t size = blocks_.options().block_size;
  for (int g = 0; g < blocks_.groups(); ++g) {
    const auto i = static_cast<size_t>(g);
    shared[i] = n > 1 && blocks_.options().groups[i].window == 0 ? (prompt_length - 1) / size : 0;
    own[i] = blocks_.peak_blocks(g, prompt_length + limit - 1, size) - shared[i];
  }
}

Refusal Scheduler::refuse_size(const SequenceParams& params, std::string& message) const {
  const auto prompt = static_cast<int64_t>(params.prompt.size());
  const int64_t most = options_.context_length - (params.scores_only ? 0 : 1);
  if (prompt > most) {
    message = fmt::format("the prompt has {} tokens and the context {}: shorten the prompt to at most {} tokens",
                          prompt, options_.context_length, most);
    return Refusal::kTooLong;
  }
  // Sequences that can be preempted only need to fit one at a time, beams all at once.
  const int64_t n = options_.policy == SchedulingPolicy::kMaxUtilization && !params.beams ? 1 : params.n;
  const int64_t limit = output_limit(params, prompt);
  Blocks own, shared;
  request_blocks(prompt, limit, n, own, shared);
  for (size_t g = 0; g < static_cast<size_t>(blocks_.groups()); ++g) {
    const CacheGroup& group = blocks_.options().groups[g];
    const int64_t want = n * own[g] + shared[g];
    if (want <= group.blocks) continue;
    message = fmt::format(
        "{} sequence(s) of {} prompt and {} output tokens need {} KV cache blocks ({} bytes) of group {}, which has {} "
        "({} bytes): ask for fewer tokens or sequences, or start the engine with a larger cache",
        n, prompt, limit, want, want * group.block_bytes, g, group.blocks, group.blocks * group.block_bytes);
    return Refusal::kNeverFits;
  }
  return Refusal::kNone;
}

// Sequences take turns: each only needs to fit alone, or with the beams of its search.
Refusal Scheduler::refuse_adjusted(const SequenceParams& params, std::string& message) const {
  const int64_t limit = output_limit(params, static_cast<int64_t>(params.prompt.size()));
  const int64_t most = std::min(params.adjusted + limit - 1, params.max_adjusted) * (params.beams ? params.n : 1);
  if (most <= options_.max_adjusted) return Refusal::kNone;
  message = fmt::format(
      "penalties and biases adjust {} logits of the first token and up to {} of the last of {}; a step has room for "
      "{}: ask for fewer tokens or biases, or shorten the prompt",
      params.adjusted, most, limit, options_.max_adjusted);
  return Refusal::kNeverFits;
}

Refusal Scheduler::refuse(const SequenceParams& params, double now, std::string& message) const {
  const bool scores_alone = params.score_from == 0 || params.n == 1;
  if (params.prompt.empty() || params.max_tokens < 1 || params.n < 1 || params.n > options_.max_sequences ||
      !scores_alone) {
    message = fmt::format("prompt of {} tokens (want >= 1), max_tokens {} (want >= 1), n {} (want 1..{}{})",
                          params.prompt.size(), params.max_tokens, params.n, options_.max_sequences,
                          scores_alone ? "" : "; 1 for prompt_logprobs");
    return Refusal::kInvalid;
  }
  const int64_t together = std::min(options_.token_budget, options_.max_logit_rows);
  if (params.beams && (params.n > together || params.score_from > 0)) {
    message = fmt::format("{} beams{}: want at most {}, and no prompt_logprobs", params.n,
                          params.score_from > 0 ? " and a scored prompt" : "", together);
    return Refusal::kInvalid;
  }
  if (const Refusal refusal = refuse_size(params, message); refusal != Refusal::kNone) return refusal;
  if (const Refusal refusal = refuse_adjusted(params, message); refusal != Refusal::kNone) return refusal;
  if (!(params.deadline > now)) {
    message = fmt::format("the deadline passed {:.3g} s ago", now - params.deadline);
    return Refusal::kLate;
  }
  const auto prompt = static_cast<int64_t>(params.prompt.size());
  if (stats_.waiting + params.n > options_.max_queue ||
      (stats_.waiting > 0 && stats_.queued_tokens + prompt > options_.max_queued_tokens)) {
    message = fmt::format("the queue is full: it holds {} of {} sequences and {} of {} prompt tokens; try again later",
                          stats_.waiting, options_.max_queue, stats_.queued_tokens, options_.max_queued_tokens);
    return Refusal::kQueueFull;
  }
  return Refusal::kNone;
}

int32_t Scheduler::new_record() {
  if (free_records_.empty()) {
    records_.emplace_back();
    return static_cast<int32_t>(records_.size()) - 1;
  }
  const int32_t record = free_records_.back();
  free_records_.pop_back();
  return record;
}

Submitted Scheduler::submit(SequenceParams params, double now) {
  Submitted submitted;
  submitted.refusal = refuse(params, now, submitted.message);
  if (submitted.refusal != Refusal::kNone) {
    stats_.refused += 1;
    return submitted;
  }
  submitted.id = next_id_;
  const std::vector<int32_t> prompt = std::move(params.prompt);
  params.prompt.clear();
  int32_t leader = -1;
  for (int64_t i = 0; i < params.n; ++i) {
    const int32_t record = new_record();
    SequenceRecord& s = at(record);
    std::vector<int32_t> tokens = std::move(s.tokens), siblings = std::move(s.siblings);  // keeps their capacity
    siblings.clear();
    s = SequenceRecord{.params = params, .id = next_id_++, .family = submitted.id, .state = State::kSibling};
    s.prompt_length = static_cast<int64_t>(prompt.size());
    s.limit = output_limit(params, s.prompt_length);
    s.scored = std::max<int64_t>(params.score_from - 1, 0);
    s.fork_at = s.prompt_length - 1;
    s.adjusted = params.adjusted;
    tokens.assign(prompt.begin(), prompt.end());
    s.tokens = std::move(tokens);
    s.siblings = std::move(siblings);
    s.order = now - params.priority * options_.ageing_seconds;
    by_id_.emplace(s.id, record);
    if (std::isfinite(params.deadline)) deadlines_.emplace(params.deadline, s.id);
    if (i == 0) {
      leader = record;
    } else {
      s.leader = leader;
      at(leader).siblings.push_back(record);
    }
  }
  stats_.submitted += params.n;
  enqueue(leader);
  return submitted;
}

// --- queue and running list
// -------------------------------------------------------------------------------------------

void Scheduler::enqueue(int32_t record) {
  SequenceRecord& s = at(record);
  s.state = State::kWaiting;
  waiting_.emplace(s.order, s.id);
  stats_.waiting += 1 + static_cast<int64_t>(s.siblings.size());
  stats_.queued_tokens += s.prompt_length;
}

void Scheduler::dequeue(int32_t record) {
  const SequenceRecord& s = at(record);
  waiting_.erase({s.order, s.id});
  stats_.waiting -= 1 + static_cast<int64_t>(s.siblings.size());
  stats_.queued_tokens -= s.prompt_length;
}

// Its index in running_, or the index to insert it at.
size_t Scheduler::position_of(int32_t record) const {
  const Order order(at(record).order, at(record).id);
  const auto before = [this](int32_t other, const Order& o) { return Order(at(other).order, at(other).id) < o; };
  return static_cast<size_t>(std::lower_bound(running_.begin(), running_.end(), order, before) - running_.begin());
}

void Scheduler::insert_running(int32_t record) {
  at(record).state = State::kRunning;
  running_.insert(running_.begin() + static_cast<int64_t>(position_of(record)), record);
  if (adapters_ != nullptr && at(record).params.adapter != 0) adapters_->add_running(at(record).params.adapter, 1);
}

void Scheduler::erase_running(int32_t record) {
  running_.erase(running_.begin() + static_cast<int64_t>(position_of(record)));
  if (adapters_ != nullptr && at(record).params.adapter != 0) adapters_->add_running(at(record).params.adapter, -1);
}

// --- ends
// -------------------------------------------------------------------------------------------------------------

// Releases its reservation. That for blocks shared with its family moves to another running member, if there is one.
void Scheduler::release_reserve(SequenceRecord& s) {
  if (options_.policy != SchedulingPolicy::kNeverEvict) return;
  SequenceRecord* heir = nullptr;
  for (SequenceId id = s.family; id < s.family + s.params.n && heir == nullptr; ++id) {
    const auto found = by_id_.find(id);
    if (id == s.id || found == by_id_.end()) continue;
    SequenceRecord& other = at(found->second);
    if (other.state == State::kRunning || (other.state == State::kSibling && other.slot >= 0)) heir = &other;
  }
  for (size_t g = 0; g < s.own.size(); ++g) {
    reserved_[g] -= s.own[g] + (heir == nullptr ? s.shared[g] : 0);
    if (heir != nullptr) heir->shared[g] += s.shared[g];
    s.own[g] = s.shared[g] = 0;
  }
}

// Takes a sequence out of running_ and frees its blocks, slot and reservation, and those of siblings that wait for it.
void Scheduler::leave(int32_t record) {
  SequenceRecord& s = at(record);
  blocks_.free(s.table);
  s.table = -1;
  erase_running(record);
  free_slots_.push_back(s.slot);
  s.slot = -1;
  for (int32_t sibling : s.siblings) {
    free_slots_.push_back(at(sibling).slot);
    at(sibling).slot = -1;
    release_reserve(at(sibling));
  }
  release_reserve(s);
}

// The first sibling replaces its leader, which then holds nothing and is in no list.
void Scheduler::hand_over(int32_t record) {
  SequenceRecord& s = at(record);
  const int32_t next = s.siblings.front();
  SequenceRecord& heir = at(next);
  const bool waits = s.state == State::kWaiting;
  if (waits)
    dequeue(record);
  else
    erase_running(record);
  heir.siblings.assign(s.siblings.begin() + 1, s.siblings.end());
  heir.leader = -1;
  for (int32_t sibling : heir.siblings) at(sibling).leader = next;
  s.siblings.clear();
  s.state = State::kSibling;
  if (waits) return enqueue(next);
  std::swap(heir.table, s.table);
  std::swap(heir.slot, s.slot);
  heir.computed = s.computed;
  heir.furthest = s.furthest;
  heir.fork_at = s.fork_at;
  insert_running(next);
}

void Scheduler::end(int32_t record, FinishReason reason) {
  SequenceRecord& s = at(record);
  if (!s.siblings.empty()) {
    hand_over(record);
  } else if (s.state == State::kWaiting) {
    dequeue(record);
  } else if (s.state == State::kSibling) {
    SequenceRecord& leader = at(s.leader);
    std::erase(leader.siblings, record);
    if (leader.state == State::kWaiting) --stats_.waiting;
  } else {
    leave(record);
  }
  if (s.slot >= 0) {  // of a sibling, or of a leader that was replaced
    free_slots_.push_back(s.slot);
    s.slot = -1;
    release_reserve(s);
  }
  s.state = State::kEnded;
  if (std::isfinite(s.params.deadline)) deadlines_.erase({s.params.deadline, s.id});
  finished_.push_back({s.id, reason});
  ++stats_.finished;
}

bool Scheduler::cancel(SequenceId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || at(found->second).state == State::kEnded) return false;
  if (at(found->second).params.beams)
    end_beams(at(found->second).family, FinishReason::kCancelled);
  else
    end(found->second, FinishReason::kCancelled);
  return true;
}

void Scheduler::expire(double now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now)
    end(by_id_.at(deadlines_.begin()->second), FinishReason::kTimeout);
}

int64_t Scheduler::draft_room(SequenceId id) const {
  const SequenceRecord& s = find(id);
  if (s.params.beams) return 0;
  if (s.state != State::kRunning || !s.siblings.empty() || s.sampled != s.delivered() || remaining(s) != 1) return 0;
  return std::min<int64_t>(s.limit - s.sampled - 1, blocks_.options().block_size - 1);  // kNeverEvict: what it reserves
}

// A row for each sequence and for one to admit; a block's tokens for prompts.
int64_t Scheduler::step_draft_room() const {
  const auto running = static_cast<int64_t>(running_.size());
  const int64_t rows = std::min(running + 1, options_.max_sequences);
  return std::min(options_.max_logit_rows - rows, options_.token_budget - running - blocks_.options().block_size);
}

void Scheduler::propose(SequenceId id, std::span<const int32_t> drafts) {
  check(static_cast<int64_t>(drafts.size()) <= draft_room(id), ErrorCode::kInternal,
        "scheduler: {} drafts of sequence {}, at most {}", drafts.size(), id, draft_room(id));
  SequenceRecord& s = at(by_id_.at(id));
  s.proposed.assign(1, s.tokens.back());
  s.proposed.insert(s.proposed.end(), drafts.begin(), drafts.end());
  s.proposed_step = planned_step_ + 1;
}

// The tokens of a step's entry: takes back what wrong drafts computed, then appends the tokens.
void Scheduler::deliver(int32_t record, const ScheduledSequence& entry, std::span<const SampledToken> results) {
  SequenceRecord& s = at(record);
  const auto count = static_cast<int64_t>(results.size());
  if (s.id != entry.id || s.state == State::kEnded) {
    stats_.overrun_tokens += count;
    return;
  }
  if (entry.drafts > 0) {
    const int64_t wrong = entry.drafts + 1 - count;
    s.drafted = 0;
    s.sampled -= wrong;
    stats_.accepted_tokens += count - 1;
    if (s.state == State::kRunning) {  // not preempted since
      s.computed -= wrong;
      s.furthest = s.computed;
      blocks_.truncate(s.table, s.computed);
    }
  }
  const int64_t block_size = blocks_.options().block_size, full = static_cast<int64_t>(s.tokens.size()) / block_size;
  for (const SampledToken& result : results) {
    if (result.end == FinishReason::kError) return end(record, FinishReason::kError);
    s.tokens.push_back(result.token);
    s.adjusted = std::min(result.adjusted >= 0 ? result.adjusted : s.adjusted + 1, s.params.max_adjusted);
    ++stats_.sampled_tokens;
    if (result.end != FinishReason::kNone) return end(record, result.end);
  }
  if (s.delivered() == s.limit)
    end(record, s.limit < s.params.max_tokens ? FinishReason::kContext : FinishReason::kLength);
  else if (s.table >= 0 && static_cast<int64_t>(s.tokens.size()) / block_size > full)
    blocks_.publish(s.table, s.tokens);
}

void Scheduler::commit(int64_t step, std::span<const SampledToken> results) {
  check(step == committed_step_ + 1 && step <= planned_step_, ErrorCode::kInternal,
        "scheduler: commit of step {} after {} ({} planned)", step, committed_step_, planned_step_);
  const PlannedStep& planned = planned_steps_[static_cast<size_t>(step) % planned_steps_.size()];
  size_t taken = 0;
  for (size_t i = 0; i < planned.plan.sequences.size(); ++i) {
    const ScheduledSequence& entry = planned.plan.sequences[i];
    if (!entry.samples) continue;
    if (const auto beams = static_cast<size_t>(entry.beams); beams > 0) {
      check(taken + beams <= results.size(), ErrorCode::kInternal, "scheduler: {} results of {} beams in step {}",
            results.size() - taken, beams, step);
      deliver_beams(std::span(planned.records).subspan(i, beams), entry.id, results.subspan(taken, beams));
      taken += beams, i += beams - 1;
      continue;
    }
    size_t count = 0;
    for (; taken + count < results.size() && results[taken + count].id == entry.id; ++count) {
    }
    check(count >= 1 && count <= static_cast<size_t>(entry.drafts) + 1, ErrorCode::kInternal,
          "scheduler: {} results of sequence {} in step {} (want 1 to {})", count, entry.id, step, entry.drafts + 1);
    deliver(planned.records[i], entry, results.subspan(taken, count));
    taken += count;
  }
  check(taken == results.size(), ErrorCode::kInternal, "scheduler: {} results for step {}, which has {}",
        results.size(), step, taken);
  committed_step_ = step;
  blocks_.step_done(step);
  stats_.running = static_cast<int64_t>(running_.size());
}

void Scheduler::fail_running() {
  committed_step_ = planned_step_;
  blocks_.step_done(planned_step_);
  while (!running_.empty()) {
    const int32_t record = running_.back();
    while (!at(record).siblings.empty()) end(at(record).siblings.back(), FinishReason::kError);
    end(record, FinishReason::kError);
  }
  for (const Order& order : waiting_) {  // their undelivered samples are lost
    SequenceRecord& s = at(by_id_.at(order.second));
    s.sampled = s.delivered();
    s.drafted = 0;
    for (int32_t sibling : s.siblings) at(sibling).sampled = at(sibling).delivered();
  }
  blocks_.forget_cache();
  stats_.running = 0;
}

std::span<const FinishedSequence> Scheduler::take_finished() {
  for (const FinishedSequence& finished : reported_) {
    const auto found = by_id_.find(finished.id);
    at(found->second).state = State::kUnused;
    at(found->second).id = -1;  // a step in flight may still refer to it
    free_records_.push_back(found->second);
    by_id_.erase(found);
  }
  reported_.clear();
  reported_.swap(finished_);
  return reported_;
}

}  // namespace octet
