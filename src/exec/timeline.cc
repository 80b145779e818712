#include "exec/timeline.h"

#include <algorithm>

namespace octet {

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
