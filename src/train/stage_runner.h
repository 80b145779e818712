// One stage of a pipeline: runs its graphs in the schedule's order and carries what crosses between stages.
//
// Owned by a Stepper, which feeds the graphs. A transfer is an exchange of the two ranks that differ in the stage
// alone, outside the graphs, and ends when both have come to it; the schedule is proven to end so.
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
  // Gives the bytes to the rank of another stage, and gets those that it gives.
  void exchange(int32_t stage, std::span<const std::byte> send, std::span<std::byte> receive);

  Executor& executor_;
  Communicator& ranks_;
  int32_t stage_, stages_, chunks_;
  PipelineSchedule schedule_;
  std::vector<std::byte> bytes_;
};

}  // namespace octet
