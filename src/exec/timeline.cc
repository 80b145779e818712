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

}  // namespace octet
