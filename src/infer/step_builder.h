// From a scheduler's plan to what the runner reads: ids, positions, slots and block tables of a forward, rows of
// sampling parameters after it. Buffers are kept, so that a steady batch allocates nothing.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "infer/request.h"
#include "infer/runner.h"

namespace octet {

class StepBuilder {
 public:
  StepBuilder(const RunnerLimits& limits, const BlockManager& blocks);

  // `sequences`: of the plan's entries, in their order. Valid until the next call.
  const StepInput& forward(const StepPlan& plan, std::span<Sequence* const> sequences);
  // Parameters of the rows to be sampled, in the order of the forward's logit_rows; closed texts get any token. Calls
  // masks. Texts that cannot be sampled as asked are added to `failed` with the reason.
  struct Failure {
    Sequence* sequence;
    std::string reason;
  };
  struct Row {
    Sequence* sequence;
    int32_t slot;
  };
  const SampleInput& sample(std::span<const Row> rows, std::vector<Failure>& failed);

 private:
  void add_tables(const ScheduledSequence& entry, size_t row);
  void add_tokens(const ScheduledSequence& entry, const Sequence& sequence);
  void add_slots(const ScheduledSequence& entry);
  bool add_mask(const Sequence& sequence, std::string& reason);
  void add_entries(Sequence& sequence, size_t row);

  const RunnerLimits& limits_;
  const BlockManager& blocks_;
  StepInput step_;
  SampleInput sample_;
  size_t mask_words_;
  // Rows of the block tables keep their contents from step to step: a sequence that keeps its row gets what changed.
  std::vector<int32_t> slot_of_row_, row_of_slot_;
};

}  // namespace octet
