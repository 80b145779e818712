// The logs of a run: log.jsonl, TensorBoard events, and the lines on the terminal.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/stepper.h"

namespace octet {

struct StepLog {
  int64_t step = 0, units = 0;
  double loss = 0, grad_norm = 0, lr = 0, seconds = 0, units_per_second = 0;
  double data_seconds = 0;  // waiting for its batches: of `seconds`, or of those before on a device that was ahead
  bool finite = true;
  bool targets = true;                                       // false: a step without any, hence without a loss
  std::vector<std::pair<std::string, double>> metrics = {};  // beside the loss
};

class RunLog {
 public:
  // Appends to existing files. Readers are told that entries from `first_step` on are of this run: a run that goes on
  // from a checkpoint makes the steps behind it anew.
  RunLog(const std::string& out, int64_t first_step, const TrainingWorkload& workload);
  ~RunLog();
  void step(const StepLog& entry);
  // Each "TASK/METRIC" is a member of the line, and "eval/TASK/METRIC" in TensorBoard.
  void tasks(int64_t step, const std::vector<std::pair<std::string, double>>& values, double seconds);
  void evaluation(int64_t step, std::span<const double> metrics, int64_t units, double seconds);
  // Recipe auto: a line for every tensor; a line for every switch, then the levels of all GEMMs; shares of the levels.
  void statistics(int64_t step, const StatsTable& stats);
  void switches(const std::vector<Switch>& made);
  void levels(int64_t step, const PrecisionPolicy& policy);
  void event(int64_t step, const std::string& kind, const std::string& text);  // checkpoint, resume, skip, replan

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

}  // namespace octet
