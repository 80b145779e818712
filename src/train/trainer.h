// The training loop: data, schedule, steps, evaluation, logs, checkpoints, signals.
#pragma once

#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "train/checkpoint.h"
#include "train/language_model.h"
#include "train/run_config.h"
#include "train/sequence_scores.h"
#include "train/stepper.h"

namespace octet {

struct TrainResult {
  RunState run;
  double last_loss = std::nan("");  // training loss of the last step that had targets
  double last_metric = 0;           // the first of the last evaluation: 0 without one, NaN where no target counts
  bool interrupted = false;         // stopped by a signal, after a checkpoint of run.step
  bool out_of_patience = false;     // ended by eval.patience
  bool reached_target = false;      // ended by eval.target
  std::string checkpoint;           // folder of the last one; "" when there is none
  Metric metric = {};               // that one, and what is counted
  CountedUnit unit = {};
  double units_per_second = 0;           // median over steps
  double seconds = 0, data_seconds = 0;  // of all steps; of that, waiting for the next step's batches
  int64_t planned_bytes = 0, allocated_bytes = 0;
  bool left_over = false;  // a launcher's rank that the run has no use for: nothing was done
};

// Of a run whose time counts from the first sample of its data that is read (docs/mlperf.md): it begins anew, warms up
// on made-up batches, reads data once ready() has returned, and is not evaluated before its first step. Called on rank
// 0, between steps.
struct TimedRun {
  // Of the settings, as the run has resolved them.
  std::function<void(const RunConfig&, const TrainingWorkload&)> ready;
  std::function<void(const RunState&)> evaluation_begins;
  // `reached`: metrics[0] is as good as eval.target, so that the run ends.
  std::function<void(const RunState&, std::span<const double> metrics, bool reached)> evaluated;
};

struct TrainHooks {
  const WorkloadRow* workload = nullptr;  // in place of the settings' own: for tests
  // After every step, before logging; for tests and benchmarks. May throw to stop the run.
  std::function<void(const RunState&, const StepResult&)> on_step = {};
  // Opens what eval.tasks names; throws what is wrong with it. Empty: eval.tasks is refused.
  std::function<std::unique_ptr<TaskEvaluation>(const RunConfig&, const TaskPlace&)> open_tasks = {};
  std::optional<Target> target = {};      // in place of the device's own: for timings
  std::optional<int64_t> free_disk = {};  // in place of what the disk has: for tests
  const TimedRun* timed = nullptr;        // outlives the run
  std::string build = {};                 // of the program: ranks that are processes must have the same
  bool handle_signals = false;            // SIGINT, SIGTERM, SIGHUP: finish the micro-batch, write a checkpoint, return
  std::function<bool()> stop = {};        // polled like the signals; for tests
};

// Runs (or resumes) what `config` describes. Everything rejectable is rejected before the first step. The ranks of its
// mesh are threads of this process, or processes that a launcher started, this one among them (docs/distributed.md);
// the result is rank 0's. A launcher's ranks beyond the mesh return at once.
TrainResult train(const RunConfig& config, const TrainHooks& hooks = {});

struct Evaluation {
  std::vector<double> metrics;  // as TrainingWorkload::metrics()
  int64_t targets = 0;          // that counted
};
// Over the validation batches until `most` targets (0 = all) have counted. `stop` is called between batches; once it
// returns true, the metrics are those of the batches so far.
Evaluation evaluate(Stepper& stepper, const TrainingWorkload& workload, int64_t most,
                    const std::function<bool()>& stop = {});

}  // namespace octet
