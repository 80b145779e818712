// One optimiser step on an executor: micro-batches through "train"/"accumulate", then "apply"; evaluation through
// "eval". Knows tensors and graphs; knows nothing of files, schedules or progress.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "exec/batch.h"
#include "exec/executor.h"
#include "ir/program.h"
#include "precision/policy.h"
#include "train/optimizer.h"
#include "train/run_config.h"
#include "train/stage_runner.h"
#include "train/workload.h"

namespace octet {

struct StepperOptions {
  OptimizerConfig optimizer;
  CompileOptions compile;
  bool library_masks = false;  // attention's dropout: see allow_library_masks
  CudaOptions cuda = {};
  Communicator* ranks = nullptr;  // this rank of compile.parallel.mesh
  bool interpret = false;         // run on the interpreter instead of the CPU executor (verification)
};

// What a run's settings ask for on this Target.
StepperOptions stepper_options(const RunConfig& config, const Target& target);

// The inputs of a step, the same on all ranks. `micro_batches` must outlive its wait().
struct StepWork {
  std::span<const Batch> micro_batches;
  double lr = 0;
  int64_t step = 1;     // from 1: dropout's counter
  int64_t skipped = 0;  // steps before it without an update: bias corrections of moments count the others
  uint64_t seed = 0;
  bool statistics = false;  // "train_stats" instead of "train": the same bits, and StepResult::statistics

  int64_t targets() const;                             // that count
  double weight() const;                               // of these
  std::map<std::string, int64_t> loss_counts() const;  // of several losses
};

struct StepResult {
  double loss =
      0;  // mean over the targets that count, by their weights; of several losses their sum; NaN where there are none
  double grad_norm = 0;        // before clipping
  bool finite = true;          // false: the device skipped the update
  int64_t targets = 0;         // 0: nothing was run, no state has changed
  double weight = 0;           // of the targets
  StatsTable statistics = {};  // of the first micro-batch, when asked for
  // Of the other outputs of the training graph, their sums over the micro-batches: metrics of the workload.
  std::map<std::string, double> sums = {};
};

// Copies of the states that survive a change of plan: masters, moments, FP8 scales and histories, by name.
struct TrainingState {
  std::vector<std::pair<std::string, std::vector<std::byte>>> tensors;
};
TrainingState take_state(Executor& executor);
// Entries that the program lacks are skipped; states that `state` lacks keep their initial value. Runs "prepare".
void put_state(Executor& executor, const TrainingState& state);

// The graph of a role for batches of a shape: "eval", "eval.1".
std::string graph_name(GraphRole role, int64_t shape = 0);

// Before any pass: "train" (loss of one micro-batch), "apply" (optimizer.h), and "eval" of every shape. Throws
// kUnsupported for several shapes of "train", or of "eval" in a pipeline.
Program training_program(const TrainingWorkload& workload, const StepperOptions& options);
// Of any graphs of a loss, as TrainingWorkload::loss() describes them; `micro_batches` of all ranks in a step.
Program training_program(Graph train, Graph eval, const OptimizerConfig& optimizer, int64_t micro_batches = 1);
Plan compile_training(const TrainingWorkload& workload, const StepperOptions& options);

class Stepper {
 public:
  Stepper(const TrainingWorkload& workload, const StepperOptions& options);
  Stepper(Plan plan, const StepperOptions& options);  // of the plan that compile_training made of them

  StepResult step(const StepWork& work);

  // The pieces of a step, each enqueued without waiting: the first micro-batch; the others, before each of which `stop`
  // is called (once true, the step is abandoned and false returned: the state is that of the step before); clipping and
  // the optimiser. wait() returns the results of the last apply(). A device need not wait for the host between two
  // steps: the next one may begin() before this one's wait(), which changes neither parameters nor what is saved. Of a
  // step without targets (StepWork::targets() is 0) none of them does anything, on any rank.
  using Stop = std::function<bool()>;
  void begin(const StepWork& work);
  bool run_remaining_micro_batches(const StepWork& work, const Stop& stop = {});
  void apply(const StepWork& work);
  StepResult wait(const StepWork& work);
  // These outputs, f32[1], of the evaluation graph of the batch's shape.
  std::vector<double> evaluate(const Batch& batch, const std::vector<std::string>& outputs = {"loss"});
  // What the workload measures of the batch.
  std::vector<double> measure(const Batch& batch, const TrainingWorkload& workload);

  // Of each token of a batch without stages: -log p of its target, and the id that is likeliest (eval.tasks).
  struct TokenScores {
    std::vector<float> losses;
    std::vector<int32_t> likeliest;
  };
  TokenScores score_tokens(const Batch& batch);

  // The numbers that all batches of an evaluation gave, in their order, from those of this rank, each batch's behind
  // the other. All ranks call it.
  std::vector<double> join_parts(const std::vector<double>& own, int64_t batches) const;

  // Micro-batch i of a step, and batch i of an evaluation, is run by data rank i mod data_ranks().
  int64_t data_rank() const { return executor_->coordinate()[Axis::kData]; }
  int64_t data_ranks() const { return plan_.program.mesh()[Axis::kData]; }

  Executor& executor() { return *executor_; }
  const Plan& plan() const { return plan_; }  // sizes and graphs; empty of data

 private:
  void enqueue(const StepWork& work, size_t micro_batch);
  void run_graph(const StepWork& work, size_t micro_batch, const std::string& graph, int32_t slot = 0);
  void write_batch(const std::string& graph, const Batch& batch, const Batch& others = {});
  EvalOutputs run_evaluation(const Batch& batch);
  StatsTable read_statistics() const;

  StepperOptions options_;
  Plan plan_;
  std::unique_ptr<Executor> executor_;
  std::optional<StageRunner> stage_;  // where the mesh has a pipeline: the whole of a step's graphs but apply
  StatsTable statistics_;             // of the step that has begun
};

// Attention of "train" may drop by masks of the device's library instead of the IR's (attr library_mask).
void allow_library_masks(Program& program);

}  // namespace octet
