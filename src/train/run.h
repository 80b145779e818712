// A run from its settings to its result, inside train(): what is opened and compiled before the first step
// (run_start.cc), the steps and what stands between them (trainer.cc), decisions of recipe auto (run_precision.cc).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/progress.h"
#include "train/auto_precision.h"
#include "train/prefetcher.h"
#include "train/run_log.h"
#include "train/run_timeline.h"
#include "train/trainer.h"

namespace octet {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Run {
 public:
  Run(const RunConfig& config, const TrainHooks& hooks);
  TrainResult loop();

 private:
  void open_data();
  void find_checkpoint();
  void check_model_folder() const;
  void build();
  void resume_or_start();
  void evaluate_now(int64_t step);
  void save(int64_t step);
  bool stop_wanted() const;
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
  void watch_finite(const StepResult& result, std::span<const Batch> micro_batches, int64_t step);
  std::string locate_non_finite(std::span<const Batch> micro_batches);
  void decide_precision(const StepResult& result, int64_t step);
  void plan_again(const std::vector<Switch>& made, int64_t step);
  void report_now(bool last);

  const RunConfig& config_;
  const TrainHooks& hooks_;
  ModelConfig model_;
  SpecialTokens special_;
  std::string tokenizer_folder_;
  std::shared_ptr<const TokenDataset> train_data_, validation_data_;
  std::unique_ptr<Objective> objective_;
  std::string data_, data_checksum_;  // what RunState keeps of them
  std::optional<std::string> resume_from_;
  RunState kept_;                        // of that checkpoint; of a run that begins, otherwise
  std::string changed_settings_;         // since it was written
  std::optional<RunTimeline> timeline_;  // before the stepper, whose graphs it is to see
  std::unique_ptr<AutoPrecision> auto_;  // recipe auto only
  std::vector<Switch> first_switches_;   // what Target and shapes ask for at the start, or at a resume
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
  std::vector<double> speeds_;  // tokens a second, of every step
  int64_t skipped_in_a_row_ = 0, last_saved_ = -1, last_evaluated_ = -1;
};

}  // namespace octet
