#include "train/auto_precision.h"

#include "passes/passes.h"

namespace octet {

std::vector<PolicyGemm> policy_gemms(const TrainingWorkload& workload, const StepperOptions& options) {
  Program program = training_program(workload, options);
  autodiff(program, options.compile);
  std::vector<PolicyGemm> gemms;
  for (const GemmReport& gemm : precision_report(program, options.compile)) {
    if (gemm.graph != GraphRole::kTrain) continue;
    gemms.push_back({.gemm = gemm.gemm,
                     .role = gemm.role,
                     .m = gemm.m,
                     .n = gemm.n,
                     .k = gemm.k,
                     .operands = {gemm.operands[0], gemm.operands[1]},
                     .unsupported_reason = gemm.reason});
  }
  return gemms;
}

AutoPrecision::AutoPrecision(const TrainingWorkload& workload, const StepperOptions& options,
                             const PolicySettings& settings, int64_t interval)
    : workload_(workload),
      options_(options),
      interval_(interval),
      policy_(policy_gemms(workload, options), settings, options.compile.target) {}

const Plan& AutoPrecision::plan(bool* cached) {
  std::string key;
  for (const PolicyGemm& gemm : policy_.gemms()) key += std::to_string(static_cast<int>(policy_.level(gemm.key())));
  auto found = plans_.find(key);
  if (cached != nullptr) *cached = found != plans_.end();
  if (found != plans_.end()) return found->second;
  StepperOptions options = options_;
  options.compile.recipe.decisions = policy_.decisions();
  return plans_.emplace(key, compile_training(workload_, options)).first->second;
}

}  // namespace octet
