// A run from its settings to its result, inside train(): what is opened and compiled before the first step
// (run_start.cc), the steps and what stands between them (trainer.cc), decisions of recipe auto (run_precision.cc).
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "dist/communicator.h"
#include "exec/timeline.h"
#include "train/auto_precision.h"
#include "train/run_config.h"
#include "train/run_log.h"
#include "train/trainer.h"

namespace octet {

class Control;

// Micro-batches of the next step, made on another thread while this one computes.
class Prefetcher {
 public:
  Prefetcher(const TrainingWorkload& workload, int64_t accumulation, int64_t first_step)
      : workload_(workload), accumulation_(accumulation) {
    start(first_step);
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() { left_ = true; }  // the future's destructor waits for the thread

  // The micro-batches of `step`; empty if `stop` returns true while waiting for them.
  template <typename Stop>
  std::vector<Batch> take(int64_t step, const Stop& stop) {
    while (next_.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready)
      if (stop()) return {};
    std::vector<Batch> ready = next_.get();
    start(step + 1);
    return ready;
  }

 private:
  void start(int64_t step) {
    next_ = std::async(std::launch::async, [this, step] {
      std::vector<Batch> made(static_cast<size_t>(accumulation_));
      for (int64_t i = 0; i < accumulation_ && !left_; ++i)
        made[static_cast<size_t>(i)] = workload_.batch(DataSplit::kTraining, (step - 1) * accumulation_ + i);
      return made;
    });
  }
  const TrainingWorkload& workload_;
  int64_t accumulation_;
  std::atomic<bool> left_ = false;
  std::future<std::vector<Batch>> next_;
};

// A device timeline over some steps of a run as it is: batches, logs and read-backs included (profile.timeline).
class RunTimeline {
 public:
  // Before the executor is made. Throws kInvalidArgument for a run on the CPU, kUnsupported where the library is
  // missing.
  explicit RunTimeline(const RunConfig& config);
  // Called when the host begins the step. If the device was ahead, the boundary between two steps lies just before, and
  // idle time there is counted within steps.
  void step_begins(int64_t step);
  // Whether recording begins or ends with the next step_begins().
  bool at_border() const;
  // Writes the trace and logs its summary, once; also when the run made fewer steps.
  void finish();

 private:
  const RunConfig& config_;
  std::unique_ptr<DeviceTimeline> device_;  // null: finished
  int64_t steps_ = 0, first_step_ = 0;      // begun in this process; the first of the timeline
  std::vector<double> marks_;               // when its steps began
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// This rank of the settings' mesh; nothing where it has one. Every rank has a Run; they go through the same steps, and
// the first one decides (what to resume, when to stop) and writes all but the others' logs.
struct RankLinks {
  Communicator* ranks = nullptr;
  Control* control = nullptr;            // of ranks that are processes
  cuda::DeviceRanks* devices = nullptr;  // of ranks with GPUs
  int device = 0;                        // this rank's
};

class Run {
 public:
  Run(const RunConfig& config, const TrainHooks& hooks, const RankLinks& links = {});
  TrainResult loop();

 private:
  void open_workload();
  void find_checkpoint();
  void build();
  void compare_plans(const Program& program) const;
  void resume_or_start();
  void open_tasks();
  void read_data_record();
  void begin_timed();
  void evaluate_now(int64_t step);
  bool evaluate_tasks(int64_t step);
  void save(int64_t step);
  bool stop_wanted();
  bool out_of_patience(int64_t step) const;
  bool run_reached_target() const;  // by its best evaluation
  bool is_first() const { return links_.ranks == nullptr || links_.ranks->rank() == 0; }
  struct Step {  // enqueued, or its first micro-batch is
    std::vector<Batch> micro_batches;
    StepWork work;
    double waited = 0;  // seconds for data
  };
  std::unique_ptr<Step> begin(Prefetcher& prefetcher, int64_t step);
  bool can_overlap_next_step(const StepWork& work) const;
  bool conclude(const Step& done, bool next_has_begun = false);
  void step_begins(int64_t step);
  void warn_of_gemms_in_high_precision();
  void watch_skipped(const StepResult& result, std::span<const Batch> micro_batches, int64_t step);
  std::string locate_non_finite(std::span<const Batch> micro_batches);
  void decide_precision(const StepResult& result, int64_t step);
  void plan_again(const std::vector<Switch>& made, int64_t step);
  void start_stepper(const Plan& plan, const TrainingState& state);
  void report_now(bool last);

  RunConfig config_;  // train.steps are those of train.epochs
  const TrainHooks& hooks_;
  RankLinks links_;
  std::string own_folder_;    // of this rank's log
  bool stop_agreed_ = false;  // by all ranks, at the last step's beginning
  std::unique_ptr<TrainingWorkload> workload_;
  DataRecord data_;
  std::optional<std::string> resume_from_;
  RunState kept_;                          // of that checkpoint; of a run that begins, otherwise
  std::string changed_settings_;           // since it was written
  std::unique_ptr<TaskEvaluation> tasks_;  // of eval.tasks
  std::optional<RunTimeline> timeline_;    // before the stepper, whose graphs it is to see
  std::unique_ptr<AutoPrecision> auto_;    // recipe auto only
  std::vector<Switch> first_switches_;     // what Target and shapes ask for at the start, or at a resume
  StepperOptions options_;
  std::unique_ptr<Stepper> stepper_;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<RunLog> log_;
  TrainResult result_;
  std::chrono::steady_clock::time_point reported_ = {};
  double report_seconds_ = 0;
  std::optional<Progress> progress_;
  std::unique_ptr<Step> in_flight_step_;  // enqueued whole, its results not yet read
  std::chrono::steady_clock::time_point step_began_ = {};
  std::vector<double> speeds_;  // units a second, of every step with targets
  int64_t skipped_in_a_row_ = 0, last_saved_ = -1, last_evaluated_ = -1;
  bool warned_of_no_targets_ = false;
};

}  // namespace octet
