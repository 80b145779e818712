#include "infer/request.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace octet {
namespace {

TEST(StopMatcher, CutsBeforeTheFirstStopAndHoldsBackPartialOnes) {
  StopMatcher stops({"END", "\n\n"});
  EXPECT_EQ(stops.push("some E"), "some ");
  EXPECT_EQ(stops.push("N"), "");
  EXPECT_EQ(stops.push("ough\n"), "ENough");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.push("\nmore"), "");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopMatcher, FinishReturnsWhatNeverBecameAStop) {
  StopMatcher stops({"abc"});
  EXPECT_EQ(stops.push("xxab"), "xx");
  EXPECT_EQ(stops.finish(), "ab");
}

TEST(StopMatcher, TheEarliestStopWins) {
  StopMatcher stops({"cd", "b"});
  EXPECT_EQ(stops.push("abcd"), "a");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.matched(), "b");
}

TEST(StopMatcher, IncludesTheStopOnRequest) {
  StopMatcher stops({"x", "END"}, /*include=*/true);
  EXPECT_EQ(stops.push("some EN"), "some ");
  EXPECT_EQ(stops.push("D more"), "END");
  EXPECT_EQ(stops.matched(), "END");
}

TEST(StopMatcher, RefusesEmptyStops) { EXPECT_THROW(StopMatcher({""}), Error); }

}  // namespace
}  // namespace octet
