// The training loop: data, schedule, steps, evaluation, logs, checkpoints, signals.
#pragma once

#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "train/checkpoint.h"
#include "train/run_config.h"
#include "train/stepper.h"

namespace octet {

struct TrainResult {
  RunState run;
  double last_loss = std::nan("");       // training loss of the last step that had targets
  double last_eval_loss = 0;             // 0 without a validation set, NaN where none of its tokens is a target
  bool interrupted = false;              // stopped by a signal, after a checkpoint of run.step
  std::string checkpoint;                // folder of the last one; "" when there is none
  double tokens_per_second = 0;          // median over steps
  double seconds = 0, data_seconds = 0;  // of all steps; of that, waiting for the next step's tokens
  int64_t planned_bytes = 0, allocated_bytes = 0;
  bool left_over = false;  // a launcher's rank that the run has no use for: nothing was done
};

struct TrainHooks {
  // After every step, before logging; for tests and benchmarks. May throw to stop the run.
  std::function<void(const RunState&, const StepResult&)> on_step = {};
  std::optional<Target> target = {};      // in place of the device's own: for timings
  std::optional<int64_t> free_disk = {};  // in place of what the disk has: for tests
  std::string build = {};                 // of the program: ranks that are processes must have the same
  bool handle_signals = false;            // SIGINT, SIGTERM, SIGHUP: finish the micro-batch, write a checkpoint, return
  std::function<bool()> stop = {};        // polled like the signals; for tests
};

// Runs (or resumes) what `config` describes. Everything rejectable is rejected before the first step. The ranks of its
// mesh are threads of this process, or processes that a launcher started, this one among them (docs/distributed.md);
// the result is rank 0's. A launcher's ranks beyond the mesh return at once.
TrainResult train(const RunConfig& config, const TrainHooks& hooks = {});

// Mean loss over the first `max_tokens` (0 = all) targets of the set, in windows of the eval shape. `stop` is called
// between batches; once it returns true, the sum so far is returned.
LossSum evaluate_dataset(Stepper& stepper, std::shared_ptr<const TokenDataset> data, int64_t max_tokens,
                         bool separate_documents, const std::function<bool()>& stop = {});

}  // namespace octet
