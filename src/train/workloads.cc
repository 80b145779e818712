// The workloads that setting `workload` names.
#include "base/error.h"
#include "train/bert.h"
#include "train/classification.h"
#include "train/language_model.h"
#include "train/preference.h"

namespace octet {
namespace {

struct Named {
  const char* name;
  const WorkloadRow* row;
};
constexpr Named kWorkloads[] = {
    {"language", &kLanguageModelling}, {"bert", &kBertPretraining}, {"classify", &kClassification}};

}  // namespace

std::vector<std::string> workload_names() {
  std::vector<std::string> names;
  for (const Named& each : kWorkloads) names.emplace_back(each.name);
  return names;
}

const WorkloadRow& workload_row(const std::string& name) {
  for (const Named& each : kWorkloads)
    if (name == each.name) return *each.row;
  fail(ErrorCode::kInvalidArgument, "workload is '{}': `octet config` lists them", name);
}

const WorkloadRow& workload_row(const RunConfig& config) {
  return config.objective == "dpo" ? kPreferenceLearning : workload_row(config.workload);
}

RunConfig default_settings(const std::string& workload) {
  const WorkloadRow& row = workload_row(workload);
  RunConfig config{.workload = workload, .optimizer = row.optimizer};
  if (row.set_defaults != nullptr) row.set_defaults(config);
  return config;
}

}  // namespace octet
