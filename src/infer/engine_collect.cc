// The results of a step: tokens of sequences, of drafts and of beams, for the scheduler's commit.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "infer/engine_loop.h"

namespace octet {

// Waits for the results of the step in flight and commits them. Its time is known where the step before was like it.
void EngineLoop::collect(bool ahead) {
  const double before = now(), last = last_step_;
  SampleOutput output = parts_.runner->wait();
  last_step_ = now();
  if (std::exchange(was_ahead_, ahead) == ahead && in_flight_.tokens > 0)
    speculation_.took(in_flight_.tokens, in_flight_.drafts, last_step_ - last);
  wait_seconds_ = last_step_ - before;
  check(output.ids.size() == in_flight_.rows.size(), ErrorCode::kInternal, "step {}: {} tokens for {} rows",
        in_flight_.step, output.ids.size(), in_flight_.rows.size());
  sampled_.clear();
  candidates_.clear();
  for (size_t row = 0; row < in_flight_.rows.size();) {
    const SampleBuilder::Row& first = in_flight_.rows[row];
    if (first.target >= 0) {
      postprocess_.append_prompt_token(*first.sequence, first.target, output, row++);
      if (first.ends) sampled_.push_back({.id = first.sequence->id, .token = first.target});
    } else {
      row = first.beams > 0 ? collect_beams(output, row) : collect_text(output, row);
    }
  }
  scheduler_.commit(in_flight_.step, sampled_);
  committed_step_ = in_flight_.step;
  in_flight_.step = 0;
  runner_seconds_ += speculation_.propose(candidates_, scheduler_);
}

// The tokens of the sequence whose rows begin at `row`: one, and one more behind each draft that is accepted. Returns
// the row behind them.
size_t EngineLoop::collect_text(const SampleOutput& output, size_t row) {
  const std::span rows = in_flight_.rows;
  RequestSequence& sequence = *rows[row].sequence;
  const bool open = !sequence.over();
  int64_t accepted = 0, drafts = 0;
  while (rows[row + static_cast<size_t>(drafts)].draft >= 0) ++drafts;
  const size_t behind = row + static_cast<size_t>(drafts) + 1;
  for (bool more = true; more; ++row) {
    const SampleBuilder::Row& now = rows[row];
    int32_t id = output.ids[row];
    more = now.draft >= 0 && speculation_.accepts(sequence, now.draft, id);
    if (more) id = now.draft, ++accepted;
    const FinishReason end = postprocess_.append_token(sequence, output, row, id);
    const int64_t adjusted = sequence.counts ? sequence.counts->entries() : 0;
    sampled_.push_back({.id = sequence.id, .token = std::max(id, 0), .end = end, .adjusted = adjusted});
    more = more && end == FinishReason::kNone && rows[row + 1].usable;
  }
  if (open) {
    speculation_.verified(sequence, drafts, accepted);
    candidates_.push_back({&sequence, static_cast<int64_t>(row) - 1});
  }
  return behind;
}

// The rows of a search, which begin at `row`. Returns the row behind them.
size_t EngineLoop::collect_beams(const SampleOutput& output, size_t row) {
  const auto count = static_cast<size_t>(in_flight_.rows[row].beams);
  Request& request = *in_flight_.rows[row].sequence->request;
  const bool open = !request.over();
  const std::span steps = open ? postprocess_.append_beams(request, output, row) : std::span<const BeamSearch::Step>();
  for (size_t i = 0; i < count; ++i) {
    const RequestSequence& beam = request.sequences[i];
    SampledToken& result = sampled_.emplace_back(SampledToken{.id = beam.id, .end = FinishReason::kStop});
    if (steps.empty()) continue;
    result.token = steps[i].token;
    result.end = FinishReason::kNone;
    result.parent = request.sequences[static_cast<size_t>(steps[i].parent)].id;
    result.adjusted = beam.counts ? beam.counts->entries() : 0;
  }
  return row + count;
}

}  // namespace octet
