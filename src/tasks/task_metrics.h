// Metrics of a document and what becomes of them over all documents, with standard errors; groups' means. The rules and
// the random numbers are lm-evaluation-harness's.
#pragma once

#include "tasks/task_config.h"

namespace octet {

struct MetricRow {
  const char* name;
  const char* aggregation;  // where the file names none
  bool higher_is_better;
  uint8_t outputs;  // a bit of each TaskOutput that has it
  bool is_of(TaskOutput output) const { return (outputs >> static_cast<int>(output) & 1) != 0; }
};

const MetricRow& find_metric(const std::string& name, const std::string& where);  // throws for an unknown one
std::vector<const MetricRow*> default_metrics(TaskOutput output);
// Throws for one that is unknown, or that cannot take what the metric gives.
void check_aggregation(const std::string& name, const MetricRow& metric, const std::string& where);

struct Likelihood {
  double sum = 0;       // of log-probabilities
  bool greedy = false;  // each token is the most likely one
};

// Of one document, by name: a number, or what the aggregation takes. `gold`: a choice's number or text, or a list.
using DocumentMetrics = std::vector<std::pair<std::string, nlohmann::ordered_json>>;
DocumentMetrics choice_metrics(const TaskConfig& task, const std::vector<std::string>& choices,
                               const std::vector<Likelihood>& likelihoods, const nlohmann::ordered_json& gold,
                               bool many_gold);
DocumentMetrics continuation_metrics(const TaskConfig& task, const Likelihood& likelihood);
DocumentMetrics rolling_metrics(const TaskConfig& task, double sum, const std::string& text);
// TruthfulQA's mc2: the share of the right answers (labels: 1) in the probability of all.
DocumentMetrics truthful_mass(const std::vector<Likelihood>& likelihoods, const nlohmann::ordered_json& labels);
DocumentMetrics reply_metrics(const TaskConfig& task, const nlohmann::ordered_json& reply,
                              const nlohmann::ordered_json& gold, bool many_gold);

struct Aggregated {
  double value = 0;
  std::optional<double> error;  // none: not known
};
// `draws`: of the bootstrap; 0: no errors.
Aggregated aggregate(const std::string& aggregation, const std::vector<nlohmann::ordered_json>& values, int64_t draws,
                     const std::string& where);

struct SubtaskMetric {
  Aggregated value;
  int64_t documents = 0;
};
Aggregated aggregate_group(const std::vector<SubtaskMetric>& subtasks, bool weight_by_size);

}  // namespace octet
