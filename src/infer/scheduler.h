// Plans each step of the engine: which sequences run, with how many tokens. Pure policy: no tensors, no threads, no
// clock (time is a parameter, in seconds, monotonic). Called from one thread.
//
// The engine's loop, one step ahead of the device:
//   plan = schedule(now); launch it; commit(previous step, its sampled tokens); for each of take_finished(): notify the
//   client. schedule(N+1) may be called before commit(N): a decode then reads its token on the device (ids is empty).
//
// States of a sequence:
//   waiting --admitted--> running --ended--> ended --reported by take_finished(), then once more--> forgotten
//      ^---- preempted ------'                ^--- from any state: cancel, deadline, failure
//   sibling (n > 1): waits until the first sequence of its request has computed all but the last prompt token, then
//   gets
//      a fork of its blocks and runs; if the first one ends earlier, the next live sibling replaces it.
// Invariants:
//   - tokens(id) = prompt + tokens delivered by commit. `computed` tokens have KV slots in steps planned so far;
//     `sampled` >= delivered counts samples planned. A running sequence computes up to prompt + sampled tokens; the
//     step that reaches that count samples one more. Preemption sets computed to 0; a preempted sequence is admitted
//     again only when all its samples are delivered, so its generated tokens are prefilled like a prompt.
//   - A sequence never computes more than prompt + limit - 1 tokens, limit = min(max_tokens, context_length - prompt):
//     the end by length is known when planning and wastes nothing. A stop is known only at commit: the token that the
//     step in flight computes for it (an overrun) is discarded, and its blocks are freed after that step.
//   - Scheduling order is the virtual arrival: submission time - priority * ageing_seconds, then id. Higher priority
//     first, FIFO within one; a level of priority equals ageing_seconds of waiting, so nothing starves. Running
//     sequences are preempted from the end of that order and only for earlier ones: the first always proceeds. The
//     first waiting sequence is never overtaken because it is large.
//   - Drafts: tokens that the caller guesses, propose(). A decode computes its next token and the drafts behind it, and
//     each gives a row; commit() tells the tokens that are true: as many as drafts were right, and one more. Until then
//     nothing else of the sequence is planned: its next token is known to neither host nor device. The slots of wrong
//     drafts are taken back at commit(); only tokens delivered are published. Drafts never cost another sequence its
//     token, row, adjusted logit or block of a step.
//   - Beams: the n sequences of a request are one search. They are admitted, preempted and ended together, and compute
//     their last tokens in one step or none. Each result of that step says which beam it goes on: a beam then owns that
//     one's blocks, by a fork, and its tokens. Nothing is planned of them before these are known. After a preemption
//     the first one computes what all have in common, the others fork from it.
//   - The adjusted logits of a step are assigned in that order; a sequence whose own do not fit waits for a later step.
//   - Every sequence is reported exactly once by take_finished(), with the reason.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "infer/adapter_slots.h"
#include "infer/block_manager.h"
#include "octet/engine.h"

namespace octet {

using SequenceId = int64_t;

struct SchedulerOptions {
  SchedulingPolicy policy = SchedulingPolicy::kMaxUtilization;
  int64_t context_length = 0;                                  // tokens of a sequence, prompt and output
  int64_t max_sequences = 256;                                 // running at once
  int64_t token_budget = 2048;                                 // per step; at least block_size
  int64_t max_logit_rows = 0;                                  // per step, sampled or scored; 0 = max_sequences
  int64_t max_adjusted = std::numeric_limits<int64_t>::max();  // logits that penalties and biases change in one step
  int64_t max_queue = 4096;                                    // waiting sequences
  int64_t max_queued_tokens = std::numeric_limits<int64_t>::max();  // prompt tokens of the waiting sequences
  double ageing_seconds = 10;                                       // see above; 0 = FIFO, priorities ignored
};

enum class Refusal {
  kNone,
  kInvalid,    // empty prompt, max_tokens < 1, n < 1, n > max_sequences, more beams than a step has tokens or rows
  kTooLong,    // the prompt leaves no room in the context for a token
  kNeverFits,  // even alone it needs more blocks than the cache or more adjusted logits than a step has
  kQueueFull,  // retry later
  kLate,       // the deadline has already passed
};

struct SequenceParams {
  std::vector<int32_t> prompt = {};
  int64_t max_tokens = 16;
  int64_t n = 1;                                              // sequences sampled from one prompt, with consecutive ids
  int32_t priority = 0;                                       // higher goes first
  double deadline = std::numeric_limits<double>::infinity();  // on the clock passed to schedule()
  uint64_t adapter = 0, salt = 0;                             // KV blocks are shared only where both are equal
  int64_t adapter_class = 0;                                  // of an adapter: whose slots it takes
  // Logits adjusted for a sequence's first token; every token adds at most one (see SampledToken), up to max_adjusted.
  int64_t adjusted = 0, max_adjusted = 0;
  // > 0: of the prompt's tokens from this one on scores are wanted, so logits of the token before each, once: each is a
  // row, and an adjusted logit, of a step. For n = 1.
  int64_t score_from = 0;
  // With max_tokens 1: what is sampled is never computed, so the prompt may fill the context.
  bool scores_only = false;
  bool beams = false;  // the n sequences are the beams of one search
};

struct Submitted {
  SequenceId id = -1;  // of the first sequence; id .. id+n-1 are the request's. -1: refused
  Refusal refusal = Refusal::kNone;
  std::string message;  // of a refusal: the values and the remedy
};

struct ScheduledSequence {
  SequenceId id = 0;
  int32_t slot = 0;            // 0..max_sequences-1, fixed while running: row of per-sequence device arrays
  TableId table = 0;           // BlockManager::blocks(table, group)
  int64_t first_position = 0;  // of the computed tokens; the KV length after the step is first_position + count
  int32_t count = 0;
  int32_t drafts = 0;       // its last tokens, guessed: each of them has a row too, after that of the token before
  int32_t scores = 0;       // prompt tokens whose rows give logits too,
  int64_t scores_from = 0;  // from this position on
  int32_t beams = 0;        // of the search that it samples for: their entries follow one another
  bool samples = false;     // the rows of its last token, or of its last true token and the drafts, give logits;
                            // commit() gets the tokens
  std::span<const int32_t> ids =
      {};  // [count]; empty: the one id is on the device, sampled by the last step of this slot
  std::array<int64_t, kMaxCacheGroups> changed = {};  // first table entry that differs from this slot's last plan
  uint64_t adapter = 0;                               // of its parameters,
  int32_t adapter_slot = -1;                          // and where that lies in this step
};

// Read the tables and ids it refers to before the next call that may end a sequence: cancel(), commit(), schedule(),
// fail_running().
struct StepPlan {
  int64_t step = 0;  // 1, 2, ...
  // Single tokens (decodes) first, then longer chunks; with adapters by their slots, those without first.
  std::vector<ScheduledSequence> sequences;
  int64_t decodes = 0;                // number of single tokens
  int64_t tokens = 0;                 // sum of counts
  int64_t logit_rows = 0;             // of sampling sequences: one each, and one a draft
  std::vector<BlockCopy> copies;      // to run before the first kernel
  std::vector<SequenceId> preempted;  // now waiting; their slots are free
  bool empty() const { return sequences.empty(); }
};

struct SampledToken {
  SequenceId id = 0;
  int32_t token = 0;
  FinishReason end = FinishReason::kNone;  // kStop or kError ends the sequence with this token (kError: without it)
  SequenceId parent = -1;                  // of a beam: whose tokens, of the same search, this one follows; -1: its own
  int64_t adjusted = -1;                   // logits adjusted from now on; -1: unknown, one more up to max_adjusted
};

struct FinishedSequence {
  SequenceId id = 0;
  FinishReason reason = FinishReason::kNone;
};

struct SchedulerStats {
  int64_t waiting = 0, running = 0, queued_tokens = 0;  // now
  // totals:
  int64_t submitted = 0, refused = 0, finished = 0, steps = 0, preemptions = 0;
  int64_t computed_tokens = 0, recomputed_tokens = 0, reused_tokens = 0, sampled_tokens = 0, overrun_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // drafts computed, and of them right
};

class Scheduler {
 public:
  static constexpr int64_t kMaxInFlight = 3;  // steps planned and not yet committed

  // `blocks` and `adapters` outlive the scheduler, which alone changes them. Null: no sequence has an adapter.
  Scheduler(SchedulerOptions options, BlockManager& blocks, AdapterSlots* adapters = nullptr);

  Submitted submit(SequenceParams params, double now);
  // False if the sequence is unknown or has ended. Its blocks are freed when the steps in flight are done.
  bool cancel(SequenceId id);
  // The next step. An empty plan needs no run and no commit: commit what is in flight, or wait for submissions. Valid
  // until its commit, an empty one until the next call. kInternal with more than kMaxInFlight steps in flight.
  const StepPlan& schedule(double now);
  // Results of a step, called in step order, in the plan's order: an entry for each sampling sequence, and behind it
  // one for each of its drafts that was right, but none after one that ends the sequence. Of beams all end or none.
  void commit(int64_t step, std::span<const SampledToken> results);
  // How many drafts the sequence can take in the next schedule(); 0 unless it decodes and its tokens are all delivered.
  int64_t draft_room(SequenceId id) const;
  // The most drafts of the next step, all sequences' together; 0 or less: none.
  int64_t step_draft_room() const;
  // Tokens that may follow tokens(id), for the next schedule() alone, which takes as many of the first as there is room
  // for. At most draft_room().
  void propose(SequenceId id, std::span<const int32_t> drafts);
  // The device failed: all steps in flight are lost, every running sequence ends as kError, cached content is dropped;
  // waiting sequences (also preempted ones) stay and can run again.
  void fail_running();
  // Sequences that ended since the last call; valid, as are their tokens(), until the next call.
  std::span<const FinishedSequence> take_finished();

  bool has_work() const { return !waiting_.empty() || !running_.empty(); }
  int64_t in_flight() const { return planned_step_ - committed_step_; }
  std::span<const int32_t> tokens(SequenceId id) const;  // prompt + delivered; kNotFound if unknown
  const SchedulerOptions& options() const { return options_; }
  const SchedulerStats& stats() const { return stats_; }

 private:
  friend struct Audit;  // testing/audit.h
  enum class State : uint8_t { kUnused, kWaiting, kSibling, kRunning, kEnded };
  using Blocks = std::array<int64_t, kMaxCacheGroups>;  // blocks per group

  struct SequenceRecord {
    SequenceParams params;            // the prompt is moved to `tokens`
    SequenceId id = -1, family = -1;  // family: id of the request's first sequence
    State state = State::kUnused;
    std::vector<int32_t> tokens;
    int64_t prompt_length = 0, limit = 0;
    int64_t computed = 0, sampled = 0;  // see the invariants
    int64_t scored = 0;                 // score_from: prompt tokens whose rows are planned, or not wanted
    int64_t fork_at = 0;                // tokens that it computes for its siblings too
    int64_t furthest = 0;               // the largest `computed` so far: tokens below it are recomputed
    int64_t adjusted = 0;               // logits, for the next token after those delivered
    std::vector<int32_t> proposed;      // its last token and the drafts behind it,
    int64_t proposed_step = 0;          // for this step
    int64_t drafted = 0;                // drafts of the step in flight, which is then its only one
    double order = 0;                   // virtual arrival
    TableId table = -1;
    int32_t slot = -1;
    std::vector<int32_t> siblings;  // records waiting for this one's prompt
    int32_t leader = -1;            // kSibling: the record it waits for
    Blocks own = {}, shared = {};   // kNeverEvict: reserved for itself, and for blocks its family shares
    int64_t delivered() const { return static_cast<int64_t>(tokens.size()) - prompt_length; }
  };
  struct PlannedStep {
    StepPlan plan;
    std::vector<int32_t> records;  // of plan.sequences
    std::vector<ScheduledSequence> chunks;
    std::vector<int32_t> chunk_records;
    int64_t tokens_left = 0, rows_left = 0, adjusted_left = 0;
    int64_t decodes_ahead = 0;                    // decodes still to be planned
    int64_t drafts_left = 0, adjusted_spare = 0;  // what decodes and prompts of running sequences leave to drafts
    Blocks promised = {};                         // blocks that admitted prompts have yet to allocate
  };
  using Order = std::pair<double, SequenceId>;

  SequenceRecord& at(int32_t record) { return records_[static_cast<size_t>(record)]; }
  const SequenceRecord& at(int32_t record) const { return records_[static_cast<size_t>(record)]; }
  const SequenceRecord& find(SequenceId id) const;

  Refusal refuse(const SequenceParams& params, double now, std::string& message) const;
  Refusal refuse_size(const SequenceParams& params, std::string& message) const;
  Refusal refuse_adjusted(const SequenceParams& params, std::string& message) const;
  int64_t output_limit(const SequenceParams& params, int64_t prompt_length) const;
  void request_blocks(int64_t prompt_length, int64_t limit, int64_t n, Blocks& own, Blocks& shared) const;

  int32_t new_record();
  void enqueue(int32_t record);
  void dequeue(int32_t record);
  void insert_running(int32_t record);
  void erase_running(int32_t record);
  size_t position_of(int32_t record) const;
  void leave(int32_t record);
  void release_reserve(SequenceRecord& s);
  void hand_over(int32_t record);
  void end(int32_t record, FinishReason reason);

  void deliver_beams(std::span<const int32_t> beams, SequenceId first, std::span<const SampledToken> results);
  void take_parents(std::span<const int32_t> beams, std::span<const SampledToken> results);
  void end_beams(SequenceId family, FinishReason reason);
  int64_t common_tokens(const SequenceRecord& leader) const;
  size_t planned_together(size_t position) const;
  int64_t decodes_at(size_t position) const;
  void plan_at(size_t position, PlannedStep& planned);
  void plan_beams(size_t first, PlannedStep& planned);
  void preempt_beams(PlannedStep& planned);
  int64_t prompt_blocks(const SequenceRecord& s, int group) const;
  bool fits(std::span<const int32_t> records, int64_t tokens, bool with_deferred) const;
  void deliver(int32_t record, const ScheduledSequence& entry, std::span<const SampledToken> results);
  int64_t remaining(const SequenceRecord& s) const;
  int64_t adjusted_logits(const SequenceRecord& s) const;
  int64_t scorable(const SequenceRecord& s, const PlannedStep& planned) const;
  void plan_scores(SequenceRecord& s, ScheduledSequence& entry, PlannedStep& planned);
  int64_t drafts_now(const SequenceRecord& s, PlannedStep& planned) const;
  bool may_sample(const SequenceRecord& s, const PlannedStep& planned) const;
  void expire(double now);
  void plan_running(PlannedStep& planned);
  void admit(PlannedStep& planned);
  bool try_admit(int32_t record, PlannedStep& planned);
  bool reserve(SequenceRecord& s);
  Blocks free_for_prompts(const PlannedStep& planned) const;
  bool fits_now(const SequenceRecord& s, const PlannedStep& planned) const;
  void promise(const SequenceRecord& s, PlannedStep& planned) const;
  void open_table(SequenceRecord& s);
  void start(int32_t record);
  bool fork_if_ready(int32_t record);
  bool make_room(size_t position, int64_t tokens, PlannedStep& planned, size_t count = 1);
  void plan_one(size_t position, PlannedStep& planned);
  void plan_chunk(size_t position, PlannedStep& planned);
  void plan_tokens(int32_t record, int64_t count, PlannedStep& planned, int64_t drafts = 0);
  void plan_sample(SequenceRecord& s, int64_t drafts, PlannedStep& planned);
  void preempt(int32_t record, PlannedStep& planned);
  void sort_by_adapter(PlannedStep& planned) const;

  SchedulerOptions options_;
  BlockManager& blocks_;
  AdapterSlots* adapters_;
  SchedulerStats stats_;
  std::vector<SequenceRecord> records_;
  std::vector<int32_t> free_records_;
  std::unordered_map<SequenceId, int32_t> by_id_;
  std::set<Order> waiting_;
  std::set<Order> deadlines_;     // of sequences that have one and have not ended
  std::vector<int32_t> running_;  // records, in order
  std::vector<int32_t> free_slots_;
  Blocks reserved_ = {};  // kNeverEvict: sum over running sequences
  bool may_preempt_ = false;
  SequenceId blocked_ = -1;   // kMaxUtilization: the first waiting sequence if it did not fit,
  Blocks blocked_free_ = {};  // and the free blocks at that time
  std::vector<FinishedSequence> finished_, reported_;
  std::array<PlannedStep, kMaxInFlight + 1> planned_steps_;
  int64_t planned_step_ = 0, committed_step_ = 0;
  SequenceId next_id_ = 1;
};

}  // namespace octet
