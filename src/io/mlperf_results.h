// Results of MLPerf Training from folders of logs, anybody's: minutes and samples to the target of every run, the mean
// that the rules take, and the convergence points of the references (rcps_*.json of github.com/mlcommons/logging).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/mlperf_log.h"

namespace octet {

struct MlperfRun {
  std::string path;
  std::string benchmark, org, platform, division, status;  // status of run_stop; "" where a key is missing
  int64_t batch = 0;                                       // global_batch_size; 0: unknown
  std::optional<double> minutes;                           // from run_start to run_stop
  std::optional<double>
      samples;           // epoch_num of the last evaluation: samples, tokens or epochs, as the reference counts
  std::string accuracy;  // of the last evaluation, as JSON
  std::vector<MlperfFault> faults;  // of check_mlperf_log
  bool succeeded() const { return status == "success" && minutes.has_value(); }
};
MlperfRun read_mlperf_run(const std::string& path);

// The runs of one folder.
struct MlperfResult {
  std::string folder;
  std::vector<MlperfRun> runs;  // result_0.txt, result_1.txt, ..., result_10.txt
  std::string benchmark() const { return runs[0].benchmark; }
  int64_t batch() const { return runs[0].batch; }
  // Without the fastest and the slowest (four each of unet3d) where enough runs are there, else of all. Runs that
  // failed count as the slowest; nothing where more failed than are left out, or the runs are of several benchmarks or
  // batches.
  std::optional<double> mean_minutes() const;
  std::optional<double> mean_samples() const;
};
// result_*.txt in the folder and those below it. Throws kNotFound where there is none.
std::vector<MlperfResult> find_mlperf_results(const std::string& folder);

struct ConvergencePoint {
  std::string benchmark, name;
  int64_t batch = 0;
  int64_t runs = 0;
  double samples = 0;  // the mean of the reference's runs, without the fastest and the slowest (four each of unet3d)
};
// Of rcps_*.json in the folder and those below it; of several rules' the same point once.
std::vector<ConvergencePoint> read_convergence_points(const std::string& folder);
// Of a batch: the point, or between the two next to it, linear in the batch; nothing beyond the smallest and largest.
std::optional<double> samples_at(const std::vector<ConvergencePoint>& points, const std::string& benchmark,
                                 int64_t batch);

}  // namespace octet
