#include "bench/timeline_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace octet {

std::string timeline_text(const std::vector<DeviceActivity>& activities, int64_t steps, int64_t top) {
  const DeviceUse use = device_use(activities);
  const auto count = static_cast<double>(steps);
  std::string text =
      fmt::format("device timeline of {} steps: {} activities, {:.1f} us a step, device idle {:.2f} % of it\n", steps,
                  activities.size(), 1e6 * use.span / count, 100 * use.idle());
  struct Sum {
    double seconds = 0, gap = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Sum> by_name;
  double end = activities.empty() ? 0 : activities.front().begin;
  for (const DeviceActivity& activity : activities) {
    Sum& sum = by_name[activity.name];
    sum.seconds += activity.end - activity.begin;
    sum.gap += std::max(0.0, activity.begin - end);
    end = std::max(end, activity.end);
    ++sum.calls;
  }
  std::vector<std::pair<std::string, Sum>> list(by_name.begin(), by_name.end());
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  text += fmt::format("{:>10} {:>9} {:>12} {:>14}  kernel\n", "us a step", "calls", "us a call", "us idle before");
  for (size_t i = 0; i < list.size() && i < static_cast<size_t>(top); ++i) {
    const auto& [name, sum] = list[i];
    const auto calls = static_cast<double>(sum.calls);
    text += fmt::format("{:>10.1f} {:>9.1f} {:>12.2f} {:>14.2f}  {}\n", 1e6 * sum.seconds / count, calls / count,
                        1e6 * sum.seconds / calls, 1e6 * sum.gap / calls, name.substr(0, 110));
  }
  return text;
}

std::string timeline_json(const std::vector<DeviceActivity>& activities) {
  nlohmann::json events = nlohmann::json::array();
  for (const DeviceActivity& activity : activities) {
    events.push_back({{"name", activity.name},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", 0},
                      {"ts", 1e6 * (activity.begin - activities.front().begin)},
                      {"dur", 1e6 * (activity.end - activity.begin)}});
  }
  return nlohmann::json{{"traceEvents", events}}.dump();
}

}  // namespace octet
