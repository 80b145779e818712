// Slots of adapters: the least recently used one gives way, none that runs.
#include "infer/adapter_slots.h"

#include <gtest/gtest.h>

namespace octet {
namespace {

TEST(AdapterSlots, TheLeastRecentlyUsedGivesWay) {
  AdapterSlots slots(1, 2);
  EXPECT_EQ(slots.slot(7), -1);
  ASSERT_TRUE(slots.make_resident(7, 0));
  ASSERT_TRUE(slots.make_resident(8, 0));
  const int32_t eight = slots.slot(8);
  EXPECT_NE(slots.slot(7), eight);
  ASSERT_TRUE(slots.make_resident(7, 0));
  ASSERT_TRUE(slots.make_resident(9, 0));
  EXPECT_EQ(slots.slot(9), eight);
  EXPECT_EQ(slots.slot(8), -1);
  EXPECT_GE(slots.slot(7), 0);
}

TEST(AdapterSlots, WhatRunsStays) {
  AdapterSlots slots(1, 2);
  for (const uint64_t adapter : {1, 2}) {
    ASSERT_TRUE(slots.make_resident(adapter, 0));
    slots.add_running(adapter, 1);
  }
  EXPECT_FALSE(slots.make_resident(3, 0));
  slots.add_running(1, 1);
  slots.add_running(1, -1);
  EXPECT_FALSE(slots.make_resident(3, 0));
  slots.add_running(2, -1);
  const int32_t two = slots.slot(2);
  EXPECT_TRUE(slots.make_resident(3, 0));
  EXPECT_EQ(slots.slot(3), two);
  EXPECT_TRUE(slots.make_resident(1, 0)) << "it is there";
}

TEST(AdapterSlots, ClassesHaveSlotsOfTheirOwn) {
  AdapterSlots slots(3, 1);
  for (const int64_t of_class : {0, 1, 2}) {
    const auto adapter = static_cast<uint64_t>(of_class + 5);
    ASSERT_TRUE(slots.make_resident(adapter, of_class));
    EXPECT_EQ(slots.slot(adapter), of_class);
    slots.add_running(adapter, 1);
  }
  EXPECT_FALSE(slots.make_resident(9, 1));
}

}  // namespace
}  // namespace octet
