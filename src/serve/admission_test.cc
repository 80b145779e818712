#include "serve/admission.h"

#include <gtest/gtest.h>

namespace octet::serve {
namespace {

TEST(KeyBudget, RequestsOfAMinuteRefillEvenly) {
  KeyBudget budget({.requests_per_minute = 60});
  for (int i = 0; i < 60; ++i) EXPECT_FALSE(budget.take(1, 10, 0)) << i;
  const auto refusal = budget.take(1, 10, 0);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, 429);
  EXPECT_EQ(refusal->reason, "requests");
  EXPECT_DOUBLE_EQ(refusal->retry_after, 1);
  EXPECT_TRUE(budget.take(1, 10, 0.9));
  EXPECT_FALSE(budget.take(1, 10, 1.9));
}

TEST(KeyBudget, TokensAreTakenAheadAndGivenBack) {
  KeyBudget budget({.tokens_per_minute = 1000});
  EXPECT_FALSE(budget.take(1, 800, 0));
  const auto refusal = budget.take(1, 400, 0);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->reason, "tokens");
  EXPECT_DOUBLE_EQ(refusal->retry_after, 12);  // 200 tokens at 1000 a minute
  budget.give_back(1, 300);
  EXPECT_FALSE(budget.take(1, 400, 0));
  // Larger than a minute's amount: only with all of it there.
  EXPECT_TRUE(budget.take(1, 5000, 30));
  EXPECT_FALSE(budget.take(1, 5000, 60));
}

TEST(KeyBudget, TextsAtOnceEndWithTheirRequests) {
  KeyBudget budget({.texts = 4});
  EXPECT_FALSE(budget.take(3, 1, 0));
  EXPECT_EQ(budget.take(2, 1, 0)->reason, "texts");
  EXPECT_EQ(budget.take(5, 1, 0)->retry_after, 0);  // never
  budget.give_back(3, 0);
  EXPECT_FALSE(budget.take(4, 1, 0));
}

TEST(QueueSpeed, IsOfTimesInWhichRequestsWait) {
  QueueSpeed speed;
  for (int i = 0; i < 10; ++i) speed.note(i, 5 * i, false);  // one request at a time
  EXPECT_EQ(speed.rate(10), 0);
  for (int i = 0; i <= 40; ++i) speed.note(10 + 0.1 * i, 50 + 100 * i, true);
  EXPECT_NEAR(speed.rate(14), 1000, 1);
  speed.note(14.1, 4150, false);
  for (int i = 0; i < 10; ++i) speed.note(15 + 5 * i, 4150 + i, false);  // quiet again
  EXPECT_NEAR(speed.rate(60), 1000, 1);
  EXPECT_EQ(speed.rate(80), 0);
}

TEST(FairQueue, KeysTakeTurnsByTokens) {
  FairQueue queue({});
  // Key 1 asks for much first; key 2 comes later with little.
  for (FairQueue::Id id = 0; id < 4; ++id) EXPECT_FALSE(queue.push(id, "1", 0, 1000, {}));
  for (FairQueue::Id id = 10; id < 14; ++id) EXPECT_FALSE(queue.push(id, "2", 0, 500, {}));
  std::vector<FairQueue::Id> order;
  while (const auto id = queue.pop()) order.push_back(*id);
  EXPECT_EQ(order, (std::vector<FairQueue::Id>{0, 10, 11, 1, 12, 13, 2, 3}));
}

TEST(FairQueue, AnIdleKeySavesNothingUp) {
  FairQueue queue({});
  for (FairQueue::Id id = 0; id < 10; ++id) queue.push(id, "1", 0, 100, {}), queue.pop();
  for (FairQueue::Id id = 20; id < 24; ++id) queue.push(id, "1", 0, 100, {});
  for (FairQueue::Id id = 30; id < 34; ++id) queue.push(id, "2", 0, 100, {});
  std::vector<FairQueue::Id> order;
  while (const auto id = queue.pop()) order.push_back(*id);
  // Key 2 is one request ahead, not ten.
  EXPECT_EQ(order, (std::vector<FairQueue::Id>{30, 20, 31, 21, 32, 22, 33, 23}));
}

TEST(FairQueue, PriorityGoesFirstAndWhoLeavesIsForgotten) {
  FairQueue queue({});
  queue.push(1, "1", 0, 10, {}), queue.push(2, "1", 5, 10, {}), queue.push(3, "1", 0, 10, {});
  EXPECT_TRUE(queue.remove(1));
  EXPECT_FALSE(queue.remove(1));
  EXPECT_EQ(queue.pop(), 2u);
  EXPECT_EQ(queue.pop(), 3u);
  EXPECT_EQ(queue.pop(), std::nullopt);
  EXPECT_EQ(queue.tokens(), 0);
}

TEST(FairQueue, IsBoundedInRequestsTokensAndTime) {
  FairQueue queue({.requests = 3, .tokens = 1000, .wait = 2});
  EXPECT_FALSE(queue.push(1, "1", 0, 500, {.rate = 100}));
  const auto wait = queue.push(2, "1", 0, 1, {.rate = 100});  // 500 tokens at 100 a second
  ASSERT_TRUE(wait);
  EXPECT_EQ(wait->status, 503);
  EXPECT_EQ(wait->reason, "wait");
  EXPECT_DOUBLE_EQ(wait->retry_after, 4);
  EXPECT_EQ(queue.push(3, "1", 0, 501, {})->reason, "queue");
  EXPECT_FALSE(queue.push(4, "1", 0, 1, {}));
  EXPECT_FALSE(queue.push(5, "1", 0, 1, {}));
  EXPECT_EQ(queue.push(6, "1", 0, 1, {})->reason, "queue");
  EXPECT_FALSE(queue.push(7, "1", 0, 1, {.waiting = -1}));           // the engine has a place that is free
  EXPECT_LE(queue.push(8, "1", 0, 1, {.rate = 1})->retry_after, 2);  // no request waits longer
}

}  // namespace
}  // namespace octet::serve
