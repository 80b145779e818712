// Where drafts come from: tokens guessed to follow a sequence, which the next step verifies. Draft ids in, hidden rows
// out: a drafter gets sequences whose tokens are all known and, for heads on the model's own states, the row of the
// runner's table `hidden` from which the last token was sampled.
//
// What it guesses costs or saves time and never changes a token, so a drafter may be wrong, and may give none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/scheduler.h"
#include "kernels/common/sampling.h"

namespace octet {

struct DraftSequence {
  SequenceId id = -1;
  std::span<const int32_t> tokens = {};  // prompt and output so far
  uint64_t salt = 0;                     // what is computed for it is shared only with sequences of this salt
  SampleRow row = {};                    // how its next token is sampled; its further ones at the next positions
  int64_t hidden_row = -1;               // of the step that sampled its last token; valid until the next forward
  int64_t most = 0;                      // tokens wanted, at most
  std::vector<int32_t> drafts = {};      // the drafter's answer
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Whether a draft costs a run of a model: then it is decided before how many are wanted, else after.
  virtual bool runs_model() const = 0;
  // Fills the drafts. Throws if it cannot go on: it is not called again.
  virtual void propose(std::span<DraftSequence> texts) = 0;
  virtual void forget(SequenceId id) = 0;  // has ended; may be unknown
};

}  // namespace octet
