// One stage of a pipeline: runs its graphs in the schedule's order and carries what crosses between stages.
//
// Owned by a Stepper, which feeds the graphs. A transfer goes from one of two ranks that differ in the stage alone to
// the other, outside the graphs. The schedule is proven to end even where a transfer ends when both have come to it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "exec/executor.h"
#include "passes/pass.h"
#include "passes/pipeline_schedule.h"

namespace octet {

class StageRunner {
 public:
  // The executor is of a program that the pass stages made with `parallel`; both outlive this.
  StageRunner(Executor& executor, const Parallel& parallel);

  // run(graph, micro-batch of this data rank, slot): feeds a graph and runs it.
  using RunGraph = std::function<void(const std::string& graph, int64_t micro_batch, int32_t slot)>;
  void step(const RunGraph& run);
  // After step(), before "apply": the ends send each other their gradients of tables that both have.
  void share_gradients();
  // run(graph) of one batch, stage after stage.
  void evaluate(const std::function<void(const std::string& graph)>& run);

  bool is_last() const { return stage_ + 1 == stages_; }
  double from_last(double value);  // the last stage's, on all stages

 private:
  void transfer(const PipelineAction& action);
  int32_t rank_of(int32_t stage) const;  // that differs from this one in the stage alone

  Executor& executor_;
  Communicator& ranks_;
  int32_t stage_, stages_, chunks_;
  PipelineSchedule schedule_;
};

}  // namespace octet
