#include "train/token_budget.h"

#include <fmt/format.h>

#include "train/plan_report.h"

namespace octet {

BudgetResult spend(const TokenBudget& budget, double units_per_second, int64_t devices, const Target& target) {
  constexpr double kHour = 3600;
  const double seconds = budget.units / units_per_second, hours = seconds / kHour * static_cast<double>(devices);
  return {.days = seconds / (24 * kHour),
          .device_hours = hours,
          .megawatt_hours = hours * target.watts * 1e-6,
          .cost = hours * budget.price};
}

std::string to_text(const TokenBudget& budget, const BudgetResult& r, const std::string& units, const Target& target) {
  std::string text = fmt::format("budget    {} {}: {:.4g} days, {:.0f} device hours", human_count(budget.units), units,
                                 r.days, r.device_hours);
  if (target.watts > 0)
    text += fmt::format(", {:.4g} MWh at {:.0f} W a device under load, without hosts and cooling", r.megawatt_hours,
                        target.watts);
  if (budget.price > 0) text += fmt::format(", cost {:.0f} at {:g} a device and hour", r.cost, budget.price);
  return text + "\n";
}

std::string to_json(const TokenBudget& budget, const BudgetResult& r) {
  std::string text = fmt::format("\"budget_units\": {:.0f}, \"days\": {:.6g}, \"device_hours\": {:.6g}, ", budget.units,
                                 r.days, r.device_hours);
  if (r.megawatt_hours > 0) text += fmt::format("\"megawatt_hours\": {:.6g}, ", r.megawatt_hours);
  if (budget.price > 0) text += fmt::format("\"cost\": {:.6g}, ", r.cost);
  return text;
}

}  // namespace octet
