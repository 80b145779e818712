// Speculation of an engine: which sequences get drafts for the next step, how many, and what became of them. Between
// the drafter, which guesses, and the scheduler, which plans; the engine's thread calls it between two steps.
//
// A sequence with drafts cannot be planned before the tokens of its step are known, so the host is not ahead of the
// device then: waits() says that the step in flight is to be collected first. Sequences without hope of drafts go on
// one step ahead.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "infer/draft_length.h"
#include "infer/drafter.h"
#include "infer/request.h"

namespace octet {

struct SpeculationOptions {
  int64_t draft_tokens = 5;
  int64_t vocab = 0;  // of the model
  bool adaptive = true;
  double simulated = -1;  // as EngineOptions::accept_simulated
};

class Speculation {
 public:
  // No drafter: nothing is guessed.
  Speculation(std::unique_ptr<Drafter> drafter, const SpeculationOptions& options);

  bool runs() const { return drafter_ != nullptr; }
  bool waits() const { return waits_; }
  // Whether the draft is taken: the sampled token is the same, or the simulation says so.
  bool accepts(const RequestSequence& text, int32_t draft, int32_t sampled) const;
  // The step's results for the sequence: drafts verified and accepted; 0 drafts for a token without.
  void verified(const RequestSequence& text, int64_t drafts, int64_t accepted);
  // A step of only sequences' next tokens and drafts took so long.
  void took(int64_t tokens, bool drafts, double seconds);
  // Drafts for the sequences of the step committed last. With nothing in flight they are proposed to the scheduler,
  // else they only say whether waits(). Returns the seconds that a draft model took.
  struct Candidate {
    RequestSequence* text;
    int64_t hidden_row;
  };
  double propose(std::span<const Candidate> candidates, Scheduler& scheduler);
  void forget(SequenceId id);
  void report(EngineStats& stats) const;  // what was drafted and accepted

 private:
  void gather(std::span<const Candidate> candidates, bool in_flight, const Scheduler& scheduler);
  bool draft();
  int64_t choose(int64_t tokens, int64_t room);
  void trim(const RequestSequence& text, DraftSequence& drafts) const;

  std::unique_ptr<Drafter> drafter_;
  SpeculationOptions options_;
  int64_t drafts_ = 0, drafted_tokens_ = 0, accepted_tokens_ = 0;
  std::array<int64_t, kMaxDraftTokens> accepted_at_ = {};
  bool failed_ = false;
  StepCosts plain_, drafted_;
  double draft_seconds_ = 0;     // of a run of the draft model, a decaying mean
  double proposal_seconds_ = 0;  // of the drafter's last answer
  bool waits_ = false;
  int64_t choices_made_ = 16;  // not measured again at once
  std::unordered_map<SequenceId, Acceptance> acceptance_;
  Acceptance all_{0.995};  // of all sequences, over some hundred drafts
  std::vector<const RequestSequence*> wanted_;
  std::vector<DraftSequence> texts_;
  std::vector<DraftChoice> choices_;
};

// The drafter of simulated acceptance without a draft model: tokens that mean nothing.
std::unique_ptr<Drafter> make_simulated_drafter();

}  // namespace octet
