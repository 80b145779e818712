// What rules 3.0.0 of MLPerf Training say of the benchmarks that workloads of this build train: settings to begin with,
// keys of a run's log, steps between evaluations, and how settings differ from the closed division's.
// Source: github.com/mlcommons/training_policies, training_rules.adoc.
#pragma once

#include <string>
#include <vector>

#include "io/mlperf_log.h"
#include "train/workload.h"

namespace octet {

// Before any is set. eval.interval 0 stands for the rules' own. Throws kUnsupported for a benchmark that no workload of
// this build trains, kInvalidArgument for a name that is none.
RunConfig mlperf_settings(const std::string& benchmark);

// Samples of a step: of bert sequences, as many as rows have on average; of gpt3 sequences.
int64_t mlperf_global_batch(const RunConfig& config, const TrainingWorkload& workload);
// Steps between evaluations of such a batch.
int64_t mlperf_eval_interval(const std::string& benchmark, int64_t global_batch);

// The lines of a run's hyperparameters, data and batch.
MlperfFields mlperf_keys(const std::string& benchmark, const RunConfig& config, const TrainingWorkload& workload);

// Each "what is VALUE (the reference's: VALUE)"; empty: the closed division's, as far as settings and sizes tell.
std::vector<std::string> closed_differences(const std::string& benchmark, const RunConfig& config,
                                            const TrainingWorkload& workload);
// What they do not tell, for whoever submits to vouch for.
std::string closed_promises(const std::string& benchmark);

}  // namespace octet
