#include "load/estimate.h"

#include <algorithm>
#include <cmath>

namespace octet {

LoadEstimate estimate_load(const EnginePlan& plan, const DeviceRates& rates, const Workload& workload, int64_t texts) {
  const auto requests = static_cast<int64_t>(workload.requests.size());
  const int64_t prompt = workload.prompt_tokens(), output = workload.output_tokens();
  if (requests == 0) return {};
  const int64_t length = std::max<int64_t>((prompt + output) / requests, 1);
  LoadEstimate estimate;
  estimate.texts = std::max<int64_t>(std::min({texts, requests, plan.kv_tokens / length}), 1);
  const double token_product_seconds = 2 * static_cast<double>(plan.matrix_elements) / rates.flops_per_second;
  estimate.step_seconds = std::max(static_cast<double>(plan.weight_bytes) / rates.bytes_per_second,
                                   static_cast<double>(estimate.texts) * token_product_seconds);
  const double steps = std::ceil(static_cast<double>(output) / static_cast<double>(estimate.texts));
  estimate.seconds = std::max(steps * estimate.step_seconds + static_cast<double>(prompt) * token_product_seconds,
                              workload.requests.back().arrival);
  return estimate;
}

}  // namespace octet
