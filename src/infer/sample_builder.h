// Makes the input of a step's sampling: rows of parameters, adjusted logits and masks.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "infer/request.h"
#include "infer/runner.h"

namespace octet {

class SampleBuilder {
 public:
  SampleBuilder(const RunnerLimits& limits, const Scheduler& scheduler);

  // Parameters of the rows to sample, in the order of the forward's logit_rows; rows of ended sequences are sampled
  // greedily. Calls mask callbacks, those of different sequences at once on the threads of base/threads.h. Sequences
  // that cannot be sampled are added to `failed` with the reason. Valid until the next call.
  struct Failure {
    RequestSequence* sequence;
    std::string reason;
    ErrorKind kind = ErrorKind::kInternal;
  };
  struct Row {
    RequestSequence* sequence;
    int32_t slot;
    int32_t target = -1;  // >= 0: the log-probability of this token is wanted, nothing is sampled
    bool ends = false;    // the target is the last token of a prompt that is scored only
    int32_t ahead = 0;    // drafts of the sequence in front of this row, which are the `draft` of the rows before
    int32_t beams = 0;    // > 0: of a search, whose rows follow one another; nothing is sampled
    int32_t draft = -1;   // the one that this row's token is compared with; the next row is right where they are equal
    bool usable = true;   // set by build(): false where the row has no mask and its token means nothing
  };
  const SampleInput& build(std::span<Row> rows, std::vector<Failure>& failed);

 private:
  struct Masks {  // of one sequence's rows
    size_t row = 0, count = 0;
    size_t first = 0;  // among the step's masks
    std::string error = {};
    ErrorKind kind = ErrorKind::kInternal;
  };
  void want_masks(std::span<Row> rows, size_t row, std::vector<Failure>& failed);
  void make_masks(Masks& masks, std::span<Row> rows);
  void add_masks(std::span<Row> rows, std::vector<Failure>& failed);
  void add_entries(std::span<const Row> rows, size_t row);

  const RunnerLimits& limits_;
  const Scheduler& scheduler_;
  SampleInput sample_;
  size_t mask_words_;
  std::vector<Masks> masks_;
  size_t mask_count_ = 0;
};

}  // namespace octet
