// One optimiser step on an executor: micro-batches through "train"/"accumulate", then "apply"; evaluation through
// "eval". Knows tensors and graphs; knows nothing of files, schedules or progress.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "exec/batch.h"
#include "exec/executor.h"
#include "ir/program.h"
#include "model/model.h"
#include "precision/policy.h"
#include "train/batches.h"
#include "train/optimizer.h"
#include "train/run_config.h"
#include "train/stage_runner.h"

namespace octet {

struct StepperOptions {
  BatchShape train, eval;
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

  int64_t tokens() const;  // targets that count
};

struct StepResult {
  double loss = 0;             // mean over valid tokens; NaN where there are none
  double grad_norm = 0;        // before clipping
  bool finite = true;          // false: the device skipped the update
  int64_t tokens = 0;          // 0: nothing was run, no state has changed
  StatsTable statistics = {};  // of the first micro-batch, when asked for
};

// Copies of the states that survive a change of plan: masters, moments, FP8 scales and histories, by name.
struct TrainingState {
  std::vector<std::pair<std::string, std::vector<std::byte>>> tensors;
};
TrainingState take_state(Executor& executor);
// Entries that the program lacks are skipped; states that `state` lacks keep their initial value. Runs "prepare".
void put_state(Executor& executor, const TrainingState& state);

struct LossSum {
  double sum = 0;
  int64_t tokens = 0;
  double mean() const { return tokens > 0 ? sum / static_cast<double>(tokens) : std::nan(""); }
};

Program training_program(const ModelSpec& model, const StepperOptions& options);  // before any pass
Plan compile_training(const ModelSpec& model, const StepperOptions& options);

class Stepper {
 public:
  Stepper(const ModelSpec& model, const StepperOptions& options);
  Stepper(Plan plan, const StepperOptions& options);  // of the plan that compile_training made of them

  StepResult step(const StepWork& work);

  // The pieces of a step, each enqueued without waiting: the first micro-batch; the others, before each of which `stop`
  // is called (once true, the step is abandoned and false returned: the state is that of the step before); clipping and
  // the optimiser. wait() returns the results of the last apply(). A device need not wait for the host between two
  // steps: the next one may begin() before this one's wait(), which changes neither parameters nor what is saved. Of a
  // step without targets (StepWork::tokens() is 0) none of them does anything, on any rank.
  using Stop = std::function<bool()>;
  void begin(const StepWork& work);
  bool run_remaining_micro_batches(const StepWork& work, const Stop& stop = {});
  void apply(const StepWork& work);
  StepResult wait(const StepWork& work);
  LossSum evaluate(const Batch& batch);

  // The sums of all windows of an evaluation in their order, from those of this rank. All ranks call it.
  std::vector<double> join_windows(const std::vector<double>& own, int64_t windows) const;

  // Micro-batch i of a step, and window i of an evaluation, is run by data rank i mod data_ranks().
  int64_t data_rank() const { return executor_->coordinate()[Axis::kData]; }
  int64_t data_ranks() const { return plan_.program.mesh()[Axis::kData]; }

  Executor& executor() { return *executor_; }
  const Plan& plan() const { return plan_; }  // sizes and graphs; empty of data
  const BatchShape& eval_shape() const { return options_.eval; }

 private:
  void enqueue(const StepWork& work, size_t micro_batch);
  void run_graph(const StepWork& work, size_t micro_batch, const std::string& graph, int32_t slot = 0);
  void write_batch(const std::string& graph, const Batch& batch, const Batch& others = {});
  StatsTable read_statistics() const;

  StepperOptions options_;
  Plan plan_;
  std::unique_ptr<Executor> executor_;
  std::optional<StageRunner> stage_;  // where the mesh has a pipeline: the whole of a step's graphs but apply
  StatsTable statistics_;             // of the step that has begun
};

// The training Program before any pass: "train" (loss of one micro-batch), "eval", and "apply" (optimizer.h).

// Of any graphs of a loss: an output "loss" (f32[1], the sum over what counts), inputs by the batches' names.
Program training_program(Graph train, Graph eval, const OptimizerConfig& optimizer);

// Of a language model.
Program training_program(const ModelSpec& model, const BatchShape& train, const BatchShape& eval,
                         const OptimizerConfig& optimizer);

// Attention of "train" may drop by masks of the device's library instead of the IR's (attr library_mask).
void allow_library_masks(Program& program);

// The loss of one micro-batch of this shape, alone: what "train" and "eval" are made of.
Graph loss_graph(GraphRole role, const ModelSpec& model, const BatchShape& shape);

}  // namespace octet
