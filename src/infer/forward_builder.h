// Converts a plan to a forward's input: ids, positions, cache slots and block tables. Buffers are reused: a steady
// batch allocates nothing.
#pragma once

#include <vector>

#include "infer/block_manager.h"
#include "infer/runner.h"
#include "infer/scheduler.h"

namespace octet {

class ForwardBuilder {
 public:
  ForwardBuilder(const RunnerLimits& limits, const BlockManager& blocks);

  const StepInput& build(const StepPlan& plan);  // valid until the next call

 private:
  void add_tables(const ScheduledSequence& entry, size_t row);
  void add_scores(const ScheduledSequence& entry);  // before its tokens
  void add_tokens(const ScheduledSequence& entry);
  void add_slots(const ScheduledSequence& entry);
  void add_adapters(const StepPlan& plan);

  const RunnerLimits& limits_;
  const BlockManager& blocks_;
  StepInput step_;
  // Rows of the block tables persist between steps: for a sequence that keeps its row only changed entries are copied.
  std::vector<int32_t> slot_of_row_, row_of_slot_;
};

}  // namespace octet
