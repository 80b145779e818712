#include "exec/timeline.h"

#include <fmt/format.h>

#include <algorithm>

namespace octet {

std::string cupti_mismatch(uint32_t found, uint32_t known) {
  constexpr uint32_t kMajor = 10000, kMinor = 100;
  if (found / kMajor != known / kMajor) return fmt::format("is version {}, not {}xxxx", found, known / kMajor);
  return found / kMinor < known / kMinor ? fmt::format("is version {}, older than {}", found, known) : "";
}

DeviceUse device_use(const std::vector<DeviceActivity>& activities) {
  if (activities.empty()) return {};
  double end = activities.front().begin, busy = 0;
  for (const DeviceActivity& activity : activities) {
    if (activity.end <= end) continue;
    busy += activity.end - std::max(end, activity.begin);
    end = activity.end;
  }
  return {.span = end - activities.front().begin, .busy = busy};
}

std::vector<DeviceGap> device_gaps(const std::vector<DeviceActivity>& activities) {
  std::vector<DeviceGap> gaps;
  size_t last = 0;
  for (size_t i = 1; i < activities.size(); ++i) {
    const double end = activities[last].end, begin = activities[i].begin;
    if (begin > end) gaps.push_back({.begin = end, .seconds = begin - end, .after = last, .before = i});
    if (activities[i].end > end) last = i;
  }
  return gaps;
}

}  // namespace octet
