#include "exec/timeline.h"

#include <gtest/gtest.h>

namespace octet {
namespace {

TEST(DeviceTimeline, OverlappingWorkCountsOnce) {
  const DeviceUse use = device_use({{"a", 1, 3}, {"b", 2, 2.5}, {"c", 2.5, 4}, {"d", 6, 9}});
  EXPECT_DOUBLE_EQ(use.span, 8);
  EXPECT_DOUBLE_EQ(use.busy, 6);
  EXPECT_DOUBLE_EQ(use.idle(), 0.25);
}

TEST(DeviceTimeline, NothingSeenIsNoIdleTime) {
  EXPECT_EQ(device_use({}).idle(), 0);
  EXPECT_EQ(device_use({{"a", 1, 1}}).idle(), 0);
}

}  // namespace
}  // namespace octet
