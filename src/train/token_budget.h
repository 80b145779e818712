// Days, energy and cost of training on so many tokens, at the speed of a planned step.
#pragma once

#include <cstdint>
#include <string>

#include "ir/target.h"

namespace octet {

struct TokenBudget {
  double units = 0;  // tokens, or what else the workload counts; 0: none is asked for
  double price = 0;  // of a device and hour; 0: not known
};

struct BudgetResult {
  double days = 0, device_hours = 0;
  double megawatt_hours = 0;  // 0: the target does not say its watts
  double cost = 0;            // 0: no price
};
BudgetResult spend(const TokenBudget& budget, double units_per_second, int64_t devices, const Target& target);

// A line for people, and members of a JSON object with a comma behind each.
std::string to_text(const TokenBudget& budget, const BudgetResult& result, const std::string& units,
                    const Target& target);
std::string to_json(const TokenBudget& budget, const BudgetResult& result);

}  // namespace octet
