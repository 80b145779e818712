// One optimiser step on an executor: micro-batches through "train"/"accumulate", then "apply"; evaluation through
// "eval". Knows tensors and graphs; knows nothing of files, schedules or progress.
#pragma once

#include <memory>
#include <span>

#include "exec/executor.h"
#include "train/batches.h"
#include "train/run_config.h"

namespace octet {

struct StepperOptions {
  BatchShape train, eval;
  OptimizerConfig optimizer;
  CompileOptions compile;
  bool interpret = false;  // run on the interpreter instead of the CPU executor (verification)
};

struct StepResult {
  double loss = 0;       // mean over valid tokens
  double grad_norm = 0;  // before clipping
  bool finite = true;    // false: the device skipped the update
  int64_t tokens = 0;
};

struct LossSum {
  double sum = 0;
  int64_t tokens = 0;
  double mean() const { return tokens > 0 ? sum / static_cast<double>(tokens) : 0.0; }
};

class Stepper {
 public:
  Stepper(const ModelConfig& model, const StepperOptions& options);

  // `step` counts from 1 (AdamW's bias correction, dropout's counter).
  StepResult step(std::span<const HostBatch> micro_batches, double lr, int64_t step, uint64_t seed);
  // Its halves: gradients of all micro-batches into the kGradient states; then clipping and AdamW.
  StepResult backward(std::span<const HostBatch> micro_batches, int64_t step, uint64_t seed);
  void apply(double lr, int64_t step, StepResult& result);
  LossSum evaluate(const HostBatch& batch);

  Executor& executor() { return *executor_; }
  const Plan& plan() const { return plan_; }  // sizes and graphs; empty of data
  const BatchShape& eval_shape() const { return eval_shape_; }

 private:
  void feed(const std::string& graph, const HostBatch& batch);
  bool has_input(const std::string& graph, const std::string& name) const;

  BatchShape eval_shape_;
  Plan plan_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace octet
