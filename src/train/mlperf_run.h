// Runs of a benchmark of MLPerf Training, each from fresh weights to a target, timed from the first sample of the data
// that is read, with logs and folders as a submission has them (docs/mlperf.md). Nothing here is an MLPerf result:
// those are what MLCommons has reviewed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace octet {

struct MlperfSubmission {
  std::string benchmark;
  std::string out;   // the folder of a submitter: systems, benchmarks, results; and runs, which is no part of it
  int64_t runs = 0;  // 0: as many as the rules want of a result
  std::optional<double> target = {};  // none: the benchmark's
  std::string division = "open";      // or closed
  std::string org = "unnamed", status = "research";
  std::string platform = {};  // "": made of what this machine has
  bool clear_caches = false;  // the operating system's, before each run
  std::string command = {};   // that this is, for whoever repeats it
};

struct MlperfAttempt {
  std::string path;  // of its log
  bool reached = false;
  double value = 0, minutes = 0;  // of the last evaluation; from run_start to run_stop
  int64_t step = 0;
};

struct MlperfRuns {
  std::string folder;  // of the logs
  std::vector<MlperfAttempt> attempts;
  bool interrupted = false;  // by a signal: the last attempt is aborted, and no more are made
  bool all_reached() const;
};

// Everything rejectable is rejected before the first file is written: settings that no run can have, existing results,
// of the closed division every difference from the reference. Of runs that a launcher started, rank 0 writes.
MlperfRuns run_mlperf(const MlperfSubmission& submission, const RunConfig& settings, const TrainHooks& hooks = {});

}  // namespace octet
