// Converts a scheduler's plan to the runner's inputs: ids, positions, slots and block tables of a forward, then rows of
// sampling parameters. Buffers are reused: a steady batch allocates nothing.
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
  StepBuilder(const RunnerLimits& limits, const BlockManager& blocks, const Scheduler& scheduler);

  const StepInput& forward(const StepPlan& plan);  // valid until the next call
  // Parameters of the rows to sample, in the order of the forward's logit_rows; rows of ended sequences are sampled
  // greedily. Calls mask callbacks, all at once on the threads of base/threads.h. Sequences that cannot be sampled are
  // added to `failed` with the reason.
  struct Failure {
    RequestText* sequence;
    std::string reason;
    ErrorKind kind = ErrorKind::kInternal;
  };
  struct Row {
    RequestText* sequence;
    int32_t slot;
    int32_t target = -1;  // >= 0: the log-probability of this token is wanted, nothing is sampled
  };
  const SampleInput& sample(std::span<const Row> rows, std::vector<Failure>& failed);

 private:
  void add_tables(const ScheduledSequence& entry, size_t row);
  void add_scores(const ScheduledSequence& entry);  // before its tokens
  void add_tokens(const ScheduledSequence& entry);
  void add_slots(const ScheduledSequence& entry);
  void want_mask(RequestText& sequence, size_t row, std::vector<Failure>& failed);
  void add_masks(std::span<const Row> rows, std::vector<Failure>& failed);
  void add_entries(RequestText& sequence, size_t row);

  const RunnerLimits& limits_;
  const BlockManager& blocks_;
  const Scheduler& scheduler_;
  StepInput step_;
  SampleInput sample_;
  size_t mask_words_;
  struct Mask {
    size_t row;
    std::span<const int32_t> generated;
    std::string error;
    ErrorKind kind = ErrorKind::kInternal;
  };
  std::vector<Mask> masks_;
  // Rows of the block tables persist between steps: for a sequence that keeps its row only changed entries are copied.
  std::vector<int32_t> slot_of_row_, row_of_slot_;
};

}  // namespace octet
