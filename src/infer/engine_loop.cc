#include "infer/engine_loop.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace octet {
namespace {

ServedModel served_model(const EngineParts& parts, const EngineOptions& options) {
  const RunnerLimits& limits = parts.runner->limits();
  return {.tokenizer = parts.tokenizer.get(),
          .eos_ids = parts.eos_ids,
          .context = limits.context,
          .vocab = limits.vocab,
          .max_sequences = std::min(options.max_sequences, limits.sequences),
          .adapters = parts.adapters.get()};
}

SchedulerOptions scheduler_options(const RunnerLimits& limits, const EngineOptions& options) {
  return {.policy = options.policy,
          .context_length = limits.context,
          .max_sequences = std::min(options.max_sequences, limits.sequences),
          .token_budget = std::min(options.max_step_tokens, limits.tokens),
          .max_logit_rows = limits.rows,
          .max_adjusted = limits.entries,
          .max_queue = std::numeric_limits<int64_t>::max()};  // the mailbox limits the queue
}

std::string timeout_text(const Request& request, double now, int64_t generated) {
  return fmt::format(
      "timeout_seconds of {} exceeded after {:.3f} s with {} of {} tokens generated; raise timeout_seconds",
      request.asked.timeout_seconds, now - request.submitted, generated, request.asked.max_tokens);
}

ErrorKind kind_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone: return ErrorKind::kNone;
    case Refusal::kInvalid: return ErrorKind::kInvalid;
    case Refusal::kTooLong:
    case Refusal::kNeverFits: return ErrorKind::kTooLong;
    case Refusal::kQueueFull: return ErrorKind::kQueueFull;
    case Refusal::kLate: return ErrorKind::kLate;
  }
  return ErrorKind::kInternal;
}

// Error kind and text of a sequence that the scheduler ended; none for other reasons.
std::pair<ErrorKind, std::string> end_cause(FinishReason reason, const RequestSequence& sequence, double now) {
  if (reason == FinishReason::kTimeout)
    return {ErrorKind::kLate, timeout_text(*sequence.request, now, sequence.generated)};
  if (reason == FinishReason::kError) return {ErrorKind::kDevice, "the device failed during a step of this sequence"};
  return {};
}

}  // namespace

EngineLoop::EngineLoop(EngineParts parts, const EngineOptions& options)
    : EngineThread(options, parts.tokenizer.get()),
      parts_(std::move(parts)),
      model_(served_model(parts_, options)),
      blocks_({.groups = parts_.runner->limits().groups,
               .block_size = static_cast<int32_t>(parts_.runner->limits().block_size),
               .prefix_cache = options.prefix_cache}),
      adapter_slots_(parts_.runner->limits().adapters.classes(), parts_.runner->limits().adapters.slots),
      scheduler_(scheduler_options(parts_.runner->limits(), options), blocks_,
                 parts_.adapters ? &adapter_slots_ : nullptr),
      forward_builder_(parts_.runner->limits(), blocks_),
      sample_builder_(parts_.runner->limits(), scheduler_),
      speculation_(std::move(parts_.drafter), {.draft_tokens = options.draft_tokens,
                                               .vocab = model_.vocab,
                                               .adaptive = options.draft_adaptive,
                                               .simulated = options.accept_simulated}),
      slots_(static_cast<size_t>(model_.max_sequences)),
      written_(
          static_cast<size_t>(parts_.runner->limits().adapters.classes() * parts_.runner->limits().adapters.slots)) {
  options_.block_size = parts_.runner->limits().block_size;
  options_.max_adapters = parts_.runner->limits().adapters.slots;
  count_step(0);
  start();
}

EngineLoop::~EngineLoop() { stop(); }

void EngineLoop::admit(Request& request) {
  const GenerationRequest& asked = request.asked;
  request.salt = salts_.number_of(asked.cache_salt);
  SequenceParams params{
      .prompt = std::move(request.prompt),
      .max_tokens = std::max<int64_t>(asked.max_tokens, 1),
      .n = std::ssize(request.sequences),
      .priority = asked.priority,
      .salt = request.salt,
      .adjusted = request.adjusted,
      .max_adjusted = request.max_adjusted,
      .score_from = asked.prompt_logprobs >= 0 ? request.virtual_tokens() + asked.prompt_logprobs_from : 0,
      .scores_only = request.last >= 0,
      .beams = asked.beams > 0};
  if (const HostAdapter* adapter = request.adapter.get(); adapter != nullptr) {
    params.adapter = adapter->id;
    params.adapter_class = adapter->of_class;
    std::vector<int32_t> ids(static_cast<size_t>(adapter->virtual_tokens));
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(model_.vocab));  // ForwardBuilder knows them by this
    params.prompt.insert(params.prompt.begin(), ids.begin(), ids.end());
  }
  if (asked.timeout_seconds > 0) params.deadline = request.submitted + asked.timeout_seconds;
  Submitted submitted = scheduler_.submit(std::move(params), now());
  if (submitted.refusal != Refusal::kNone) {
    const bool late = submitted.refusal == Refusal::kLate;
    FinishReason end = late ? FinishReason::kTimeout : FinishReason::kError;
    count_outcome(end);
    request.stream->refuse(end, kind_of(submitted.refusal), late ? timeout_text(request, now(), 0) : submitted.message);
    mailbox_->admitted(std::ssize(request.sequences), request.prompt_tokens);
    requests_.erase(request.ticket);
    return mailbox_->ended();
  }
  for (RequestSequence& sequence : request.sequences) {
    sequence.id = submitted.id + sequence.sample;
    sequences_.emplace(sequence.id, &sequence);
  }
}

void EngineLoop::step() {
  double begin = now();
  runner_seconds_ = wait_seconds_ = 0;
  if (in_flight_.step > 0 && (in_flight_.beams || speculation_.waits())) collect(/*ahead=*/false);
  const bool ahead = in_flight_.step > 0;
  const StepPlan& plan = scheduler_.schedule(begin);
  bool runs = !plan.empty();
  if (runs) launch(plan, begin);
  if (runs && !ahead) sample();  // all tokens are known
  handle_finished();
  deliver();
  stalled_ = !runs && !ahead;
  if (ahead) {
    collect(ahead);
    if (runs) sample();
  }
  count_step(now() - begin);
}

// Starts the plan's step, up to and including its forward.
void EngineLoop::launch(const StepPlan& plan, double time) {
  for (SequenceId id : plan.preempted) {
    ++counts_.preemptions;
    if (auto found = sequences_.find(id); found != sequences_.end()) found->second->request->stream->preempted();
  }
  planned_.step = plan.step;
  planned_.rows.clear();
  planned_.tokens = 0;
  planned_.drafts = planned_.beams = false;
  int64_t started = 0, started_tokens = 0;
  for (const ScheduledSequence& entry : plan.sequences) {
    RequestSequence& sequence = sequence_of(entry);
    if (!sequence.started) {
      if (first_step(sequence, entry, time)) started_tokens += sequence.request->prompt_tokens;
      ++started;
    }
    sequence.last_step = plan.step;
    if (entry.adapter_slot >= 0) write_adapter(entry, *sequence.request->adapter.get());
    if (entry.scores > 0) {
      const auto targets = scheduler_.tokens(entry.id).subspan(static_cast<size_t>(entry.scores_from) + 1);
      for (int32_t i = 0; i < entry.scores; ++i)
        planned_.rows.push_back({&sequence, entry.slot, targets[static_cast<size_t>(i)]});
    }
    const int32_t last = sequence.request->last;
    if (entry.samples && last >= 0)
      planned_.rows.push_back({.sequence = &sequence, .slot = entry.slot, .target = last, .ends = true});
    for (int32_t i = 0; entry.samples && last < 0 && i <= entry.drafts; ++i)
      planned_.rows.push_back({.sequence = &sequence,
                               .slot = entry.slot,
                               .ahead = i,
                               .beams = entry.beams,
                               .draft = i < entry.drafts ? entry.ids[static_cast<size_t>(i) + 1] : -1});
    planned_.drafts |= entry.drafts > 0;
    planned_.beams |= entry.beams > 0;
    if (entry.count == entry.drafts + 1) planned_.tokens += entry.count;
    const int64_t prompt = sequence.request->virtual_tokens() + sequence.request->prompt_tokens;
    counts_.prompt_tokens += std::clamp<int64_t>(prompt - entry.first_position, 0, entry.count);
  }
  if (started > 0) mailbox_->admitted(started, started_tokens);
  if (planned_.tokens < plan.tokens || planned_.beams) planned_.tokens = 0;
  const StepInput& input = forward_builder_.build(plan);
  double before = now();
  if (!plan.copies.empty()) parts_.runner->copy_blocks(plan.copies);
  parts_.runner->forward(input);
  runner_seconds_ += now() - before;
  ++counts_.steps;
  counts_.padded_tokens += parts_.runner->padded_tokens(input) - plan.tokens;
}

// Steps before this one that read the slot were launched, and end before the bytes arrive.
void EngineLoop::write_adapter(const ScheduledSequence& entry, const HostAdapter& adapter) {
  uint64_t& written = written_[static_cast<size_t>(entry.adapter_slot)];
  if (written == adapter.id) return;
  const int64_t slot = entry.adapter_slot - adapter.of_class * parts_.runner->limits().adapters.slots;
  std::vector<StatePart> parts;
  for (const SlotBytes& part : adapter.parts) {
    const int64_t bytes = std::ssize(part.bytes) / part.pieces;
    for (int64_t p = 0; p < part.pieces; ++p)
      parts.push_back({&part.state, part.first + p * part.apart + slot * bytes,
                       std::span(part.bytes).subspan(static_cast<size_t>(p * bytes), static_cast<size_t>(bytes))});
  }
  parts_.runner->write_states(parts);
  written = adapter.id;
}

AdapterStore& EngineLoop::store() const {
  check(parts_.adapters != nullptr, ErrorCode::kUnsupported,
        "this engine was started without adapters: give them by --adapter NAME=DIR, or room for them by max_adapters");
  return *parts_.adapters;
}

void EngineLoop::load_adapter(const std::string& name, const std::string& folder, bool replace) {
  store().load(name, folder, replace);
}

void EngineLoop::load_adapter(const std::string& name, const AdapterSpec& spec, const AdapterTensors& tensors,
                              bool replace) {
  store().load(name, spec, tensors, replace);
}

RequestSequence& EngineLoop::sequence_of(const ScheduledSequence& entry) {
  SlotUser& user = slots_[static_cast<size_t>(entry.slot)];
  if (user.id != entry.id) user = {entry.id, sequences_.at(entry.id)};
  return *user.sequence;
}

// True for the first of its request.
bool EngineLoop::first_step(RequestSequence& sequence, const ScheduledSequence& entry, double time) {
  Request& request = *sequence.request;
  sequence.started = true;
  if (request.waiting-- != std::ssize(request.sequences)) return false;
  request.adapter.runs();
  const int64_t cached = std::max<int64_t>(entry.first_position - request.virtual_tokens(), 0);
  counts_.cached_tokens += cached;
  request.stream->started(time - request.submitted, request.prompt_tokens, cached);
  return true;
}

// Sequences that the scheduler reports as ended: by length, deadline or cancellation.
void EngineLoop::handle_finished() {
  for (const FinishedSequence& finished : scheduler_.take_finished()) {
    auto found = sequences_.find(finished.id);
    if (found == sequences_.end()) continue;
    RequestSequence& sequence = *found->second;
    const auto [kind, text] = end_cause(finished.reason, sequence, now());
    postprocess_.end(sequence, finished.reason, kind, text);
    --sequence.request->unreported;
    speculation_.forget(finished.id);
    sequences_.erase(found);
  }
}

// Starts the sampling of the planned step; the tokens of all earlier steps are known by now.
void EngineLoop::sample() {
  failed_.clear();
  const SampleInput& input = sample_builder_.build(planned_.rows, failed_);
  double before = now();
  parts_.runner->sample(input);
  runner_seconds_ += now() - before;
  std::swap(planned_, in_flight_);
  for (const SampleBuilder::Failure& failure : failed_)
    end(*failure.sequence->request, FinishReason::kError, failure.kind, failure.reason);
}

void EngineLoop::count_step(double seconds) {
  counts_.running = scheduler_.stats().running;
  counts_.waiting = scheduler_.stats().waiting;
  counts_.generated_tokens = postprocess_.generated_tokens();
  speculation_.report(counts_);
  counts_.seconds += seconds;
  counts_.wait_seconds += wait_seconds_;
  counts_.host_seconds += seconds - wait_seconds_ - runner_seconds_;
  counts_.kv_blocks = counts_.kv_blocks_used = counts_.kv_blocks_cached = 0;
  for (int g = 0; g < blocks_.groups(); ++g) {
    counts_.kv_blocks += blocks_.options().groups[static_cast<size_t>(g)].blocks;
    counts_.kv_blocks_used += blocks_.stats(g).used;
    counts_.kv_blocks_cached += blocks_.stats(g).cached;
  }
  counts_.kv_bytes = parts_.runner->limits().kv_bytes;
}

}  // namespace octet
