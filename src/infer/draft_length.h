// How many drafts pay: measured acceptance of each sequence, measured seconds of steps by their tokens, and the choice
// of lengths that makes the most tokens a second of a step. Pure: time is a parameter.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace octet {

// The chance that a draft of a sequence is right, given that those before it are; old outcomes count less and less, and
// without drafts it goes back to what is assumed of a new sequence, so that drafts are tried again. A sequence that was
// tried is also thought to be like all sequences: else chance makes long drafts of one and none of another.
class Acceptance {
 public:
  explicit Acceptance(double kept = 0.9) : kept_(kept) {}  // of earlier outcomes with each new one
  void verified(int64_t drafts, int64_t accepted);
  void undrafted();  // a token came without drafts
  double rate() const { return (right_ + kAssumed * kWeight) / (tried_ + kWeight); }
  double rate(const Acceptance& all) const;

 private:
  static constexpr double kAssumed = 0.8, kWeight = 2, kAllWeight = 6;
  double kept_, right_ = 0, tried_ = 0;
};

struct StepCost {
  double tokens = 0, seconds = 0;  // 0 = not measured
};

// Seconds of a step by the number of its tokens.
class StepCosts {
 public:
  void observe(int64_t tokens, double seconds);
  bool known() const { return known_; }
  // Between sizes that were measured, and `known`, where that is the nearest below; below the least and above the
  // largest what these took.
  double seconds(int64_t tokens, const StepCost& known = {}) const;

 private:
  static constexpr size_t kSizes = 40;  // two for every power of two
  static size_t size_of(int64_t tokens);
  std::array<StepCost, kSizes> sizes_ = {};  // decaying means
  bool known_ = false;
};

struct DraftChoice {
  double acceptance = 0;
  int64_t available = 0;  // drafts of the sequence
  int64_t chosen = 0;     // of them
};

struct StepLoad {
  int64_t tokens = 0;        // of the step without drafts, each a sequence's next
  int64_t room = 0;          // drafts that the step can verify
  double draft_seconds = 0;  // of a run of the draft model: as many as the longest sequence's drafts
};

// Sets `chosen`: drafts are taken in the order of their chance to be accepted, up to the room, as many as make the most
// of (sequences' tokens + accepted drafts) / seconds of the step. 0 where no step without drafts was measured yet, or
// all are worth less than 5 %.
void choose_drafts(std::span<DraftChoice> texts, const StepLoad& load, const StepCosts& plain,
                   const StepCosts& drafted);

}  // namespace octet
