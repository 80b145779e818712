#include "exec/timeline.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace octet {
namespace {

TEST(DeviceTimeline, OverlappingWorkCountsOnce) {
  const DeviceUse use = device_use({{"a", 1, 3}, {"b", 2, 2.5}, {"c", 2.5, 4}, {"d", 6, 9}});
  EXPECT_DOUBLE_EQ(use.span, 8);
  EXPECT_DOUBLE_EQ(use.busy, 6);
  EXPECT_DOUBLE_EQ(use.idle(), 0.25);
}

// Exchanges at work from 1 to 4 and from 6 to 8; kernels beside them from 2 to 3 and from 7 on.
TEST(DeviceTimeline, ExchangesAreAloneWhereNoKernelIsAtWork) {
  const DeviceExchanges exchanges = device_exchanges({{"gemm", 0, 1},
                                                      {"octet::cuda::peer_sum_kernel", 1, 3},
                                                      {"gemm", 2, 3},
                                                      {kPeerCopy, 2.5, 4},
                                                      {"ncclDevKernel_AllReduce", 6, 8},
                                                      {"gemm", 7, 9}});
  EXPECT_DOUBLE_EQ(exchanges.busy, 5);
  EXPECT_DOUBLE_EQ(exchanges.alone, 3);
  EXPECT_EQ(device_exchanges({{"gemm", 0, 1}}).busy, 0);
}

TEST(DeviceTimeline, NothingSeenIsNoIdleTime) {
  EXPECT_EQ(device_use({}).idle(), 0);
  EXPECT_EQ(device_use({{"a", 1, 1}}).idle(), 0);
}

TEST(DeviceTimeline, GapsAreWhatNoActivityCovers) {
  const auto gaps = device_gaps({{"a", 1, 5}, {"b", 2, 3}, {"c", 6, 7}, {"d", 7, 8}, {"e", 8.5, 9}});
  ASSERT_EQ(gaps.size(), 2u);
  EXPECT_DOUBLE_EQ(gaps[0].begin, 5);
  EXPECT_DOUBLE_EQ(gaps[0].seconds, 1);
  EXPECT_EQ(gaps[0].after, 0u);  // not b, which began later and ended earlier
  EXPECT_EQ(gaps[0].before, 2u);
  EXPECT_DOUBLE_EQ(gaps[1].seconds, 0.5);
  EXPECT_TRUE(device_gaps({}).empty());
}

// Two steps, of 400 and 500 us: 100 us between them, one wait of 50 us and one launch of 10 us within.
TEST(DeviceTimeline, ARunsIdleTimeIsToldByWhereItLies) {
  const std::vector<DeviceActivity> activities = {
      {"a", 0, 200e-6}, {"b", 210e-6, 400e-6}, {"a", 500e-6, 700e-6}, {"b", 750e-6, 1000e-6}};
  const std::string text = run_timeline_text(activities, {-10e-6, 450e-6}, 11, 2);
  EXPECT_NE(text.find("steps 11 to 12: 0.500 ms a step, 4 activities, busy 84.00 %, idle 16.00 %"), text.npos) << text;
  EXPECT_NE(text.find("between steps: 10.000 % (1 gaps, 100.0 us each, longest 100.0 us)"), text.npos) << text;
  EXPECT_NE(text.find("within steps: 5.000 % in 1 gaps of 20 us or more, 1.000 % in shorter ones"), text.npos) << text;
  EXPECT_NE(text.find("     100.0    11|12  b -> a\n      50.0       12  a -> b\n"), text.npos) << text;
  EXPECT_EQ(text.find("10.0       11"), text.npos) << text;  // the third gap of two asked for
  EXPECT_NE(run_timeline_text({}, {1.0}, 1, 10).find("nothing was seen"), std::string::npos);
}

TEST(DeviceTimeline, RecordsOfAnotherLibraryAreNotRead) {
  EXPECT_EQ(cupti_mismatch(130001, 130001), "");
  EXPECT_EQ(cupti_mismatch(130100, 130001), "");
  EXPECT_EQ(cupti_mismatch(130000, 130001), "");
  EXPECT_EQ(cupti_mismatch(130001, 130100), "is version 130001, older than 130100");
  EXPECT_EQ(cupti_mismatch(140000, 130001), "is version 140000, not 13xxxx");
  EXPECT_EQ(cupti_mismatch(28, 130001), "is version 28, not 13xxxx");  // of CUDA 12.8
}

TEST(DeviceTimeline, TheTraceIsJson) {
  const auto trace = nlohmann::json::parse(timeline_json({{"f<\"x\">", 1, 1.5}, {"g", 2, 2.25}}));
  ASSERT_EQ(trace["traceEvents"].size(), 2u);
  EXPECT_EQ(trace["traceEvents"][0]["name"], "f<\"x\">");
  EXPECT_DOUBLE_EQ(trace["traceEvents"][1]["ts"].get<double>(), 1e6);
  EXPECT_DOUBLE_EQ(trace["traceEvents"][1]["dur"].get<double>(), 0.25e6);
  EXPECT_TRUE(nlohmann::json::parse(timeline_json({}))["traceEvents"].empty());
}

}  // namespace
}  // namespace octet
