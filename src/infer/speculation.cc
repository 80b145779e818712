#include "infer/speculation.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/rng.h"

namespace octet {
namespace {

// After so many steps the other way, with drafts or without, is measured again, by so many.
constexpr int64_t kRecheck = 512, kRechecked = 3;

class SimulatedDrafter final : public Drafter {
 public:
  bool runs_model() const override { return false; }
  void propose(std::span<DraftSequence> texts) override {
    for (DraftSequence& text : texts) text.drafts.assign(static_cast<size_t>(text.most), text.tokens.back());
  }
  void forget(SequenceId) override {}
};

}  // namespace

std::unique_ptr<Drafter> make_simulated_drafter() { return std::make_unique<SimulatedDrafter>(); }

Speculation::Speculation(std::unique_ptr<Drafter> drafter, const SpeculationOptions& options)
    : drafter_(std::move(drafter)), options_(options) {}

bool Speculation::accepts(const RequestSequence& text, int32_t draft, int32_t sampled) const {
  if (options_.simulated < 0) return draft == sampled;
  const uint64_t word = mix64(static_cast<uint64_t>(text.id) * 1'000'003 + static_cast<uint64_t>(text.generated));
  return uniform_from_bits(static_cast<uint32_t>(word >> 32)) < options_.simulated;
}

void Speculation::verified(const RequestSequence& text, int64_t drafts, int64_t accepted) {
  if (!runs()) return;
  Acceptance& acceptance = acceptance_[text.id];
  if (drafts == 0) return acceptance.undrafted();
  acceptance.verified(drafts, accepted);
  all_.verified(drafts, accepted);
  ++drafts_;
  drafted_tokens_ += drafts;
  accepted_tokens_ += accepted;
  for (int64_t i = 0; i < accepted; ++i) ++accepted_at_[static_cast<size_t>(i)];
}

void Speculation::took(int64_t tokens, bool drafts, double seconds) {
  (drafts ? drafted_ : plain_).observe(tokens, drafts ? std::max(seconds - proposal_seconds_, 0.0) : seconds);
}

void Speculation::report(EngineStats& stats) const {
  stats.drafts = drafts_;
  stats.drafted_tokens = drafted_tokens_;
  stats.accepted_tokens = accepted_tokens_;
  stats.accepted_at = accepted_at_;
  stats.draft_failed = failed_;
}

void Speculation::forget(SequenceId id) {
  if (!runs()) return;
  acceptance_.erase(id);
  drafter_->forget(id);
}

// The sequences of which drafts are wanted, with the most that each can take.
void Speculation::gather(std::span<const Candidate> candidates, bool in_flight, const Scheduler& scheduler) {
  texts_.clear();
  wanted_.clear();
  for (const Candidate& candidate : candidates) {
    const RequestSequence& text = *candidate.text;
    const GenerationRequest& asked = text.request->asked;
    if (text.over() || (options_.simulated >= 0 && asked.mask)) continue;
    int64_t most = asked.draft_tokens < 0 ? options_.draft_tokens : std::min(options_.draft_tokens, asked.draft_tokens);
    if (!in_flight) most = std::min(most, scheduler.draft_room(text.id));
    if (most <= 0) continue;
    wanted_.push_back(&text);
    texts_.push_back({.id = text.id,
                      .tokens = scheduler.tokens(text.id),
                      .salt = text.request->salt,
                      .row = sample_row(asked.sampling, text.sample, text.generated),
                      .hidden_row = candidate.hidden_row,
                      .most = most});
  }
}

// Asks the drafter; false when it has failed, and for good. Drafts that cannot be right are cut off.
bool Speculation::draft() {
  const auto start = std::chrono::steady_clock::now();
  try {
    drafter_->propose(texts_);
  } catch (const std::exception& error) {
    log_warning("the draft model failed; continuing without speculation: {}", error.what());
    drafter_.reset();
    failed_ = true;
    return false;
  }
  proposal_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (size_t i = 0; i < texts_.size(); ++i) trim(*wanted_[i], texts_[i]);
  return true;
}

// At a token that ends the sequence, that the model does not have, or that the guide forbids.
void Speculation::trim(const RequestSequence& text, DraftSequence& drafts) const {
  const Request& request = *text.request;
  const auto cannot_be = [&](int32_t id) {
    return id < 0 || id >= options_.vocab || std::ranges::find(request.end_ids, id) != request.end_ids.end();
  };
  auto keep = static_cast<int64_t>(std::ranges::find_if(drafts.drafts, cannot_be) - drafts.drafts.begin());
  keep = std::min(keep, drafts.most);
  drafts.drafts.resize(static_cast<size_t>(keep));
  if (keep > 0 && request.asked.fits)
    keep = request.asked.fits(text.sample, drafts.tokens.subspan(static_cast<size_t>(request.prompt_tokens)),
                              drafts.drafts);
  drafts.drafts.resize(static_cast<size_t>(std::clamp<int64_t>(keep, 0, std::ssize(drafts.drafts))));
}

// Sets `most` of the sequences to what pays; the largest of them.
int64_t Speculation::choose(int64_t tokens, int64_t room) {
  choices_.clear();
  for (const DraftSequence& text : texts_)
    choices_.push_back({.acceptance = acceptance_[text.id].rate(all_),
                        .available = drafter_->runs_model() ? text.most : std::ssize(text.drafts)});
  if (options_.adaptive) {
    choose_drafts(choices_, {.tokens = tokens, .room = room, .draft_seconds = draft_seconds_}, plain_, drafted_);
    const bool none = std::ranges::all_of(choices_, [](const DraftChoice& choice) { return choice.chosen == 0; });
    if (plain_.known() && ++choices_made_ % kRecheck < kRechecked)
      for (DraftChoice& choice : choices_) choice.chosen = none ? choice.available : 0;
  }
  int64_t longest = 0;
  for (size_t i = 0; i < texts_.size(); ++i) {
    texts_[i].most = options_.adaptive ? choices_[i].chosen : choices_[i].available;
    longest = std::max(longest, texts_[i].most);
  }
  return longest;
}

double Speculation::propose(std::span<const Candidate> candidates, Scheduler& scheduler) {
  waits_ = false;
  if (!runs()) return 0;
  const bool in_flight = scheduler.in_flight() > 0, models = drafter_->runs_model();
  gather(candidates, in_flight, scheduler);
  if (texts_.empty() || (!models && !draft())) return 0;
  const int64_t longest = choose(std::ssize(candidates), scheduler.step_draft_room());
  waits_ = longest > 0;
  if (in_flight || longest == 0) return 0;
  if (models) {
    waits_ = draft();
    if (!waits_) return 0;
    const double seconds = proposal_seconds_ / static_cast<double>(longest);
    draft_seconds_ += (draft_seconds_ == 0 ? 1 : 0.1) * (seconds - draft_seconds_);
  }
  for (DraftSequence& text : texts_) {
    text.drafts.resize(std::min(text.drafts.size(), static_cast<size_t>(text.most)));
    scheduler.propose(text.id, text.drafts);
  }
  return models ? proposal_seconds_ : 0;
}

}  // namespace octet
