#include "serve/guide_cache.h"

#include <gtest/gtest.h>

#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

// A guide of some fifty states.
std::shared_ptr<const Guide> some_guide(int number, const GuideLimits& limits) {
  return regex_guide("(" + std::to_string(number) + "[a-z]{3}x?){100}", limits);
}

TEST(GuideCache, RequestsOfOneSourceShareAGuide) {
  GuideCache cache;
  const auto make = [](const GuideLimits& limits) { return some_guide(1, limits); };
  const auto guide = cache.get("one", make);
  EXPECT_EQ(cache.get("one", make), guide);
  EXPECT_NE(cache.get("two", make), guide);
  const std::string large(100'000, 'x');
  EXPECT_NE(cache.get(large, make), cache.get(large, make));
}

TEST(GuideCache, AGuideWithoutRoomForMoreTextsIsMadeAnew) {
  GuideCache cache;
  const auto make = [](const GuideLimits& limits) {
    GuideLimits few = limits;
    few.states = 60;
    return some_guide(1, few);
  };
  const auto guide = cache.get("one", make);
  EXPECT_GT(guide_fill(*guide), 0.5);
  EXPECT_NE(cache.get("one", make), guide);
}

TEST(GuideCache, IdleGuidesMakeRoomAndRunningOnesAreTheBound) {
  GuideCache cache(/*most_bytes=*/1 << 20);
  const auto get = [&](int number) {
    return cache.get(std::to_string(number), [&](const GuideLimits& limits) { return some_guide(number, limits); });
  };
  for (int i = 0; i < 100; ++i) EXPECT_NO_THROW(get(i)) << i;
  std::vector<std::shared_ptr<const Guide>> running;
  try {
    for (int i = 0; i < 100; ++i) running.push_back(get(1000 + i));
    ADD_FAILURE() << "a hundred guides fit";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 503);
    EXPECT_STREQ(error.what(), "all guides together take more than 1 MB: try again later");
  }
  EXPECT_GT(running.size(), 2u);
  running.clear();
  EXPECT_NO_THROW(get(2000));
}

TEST(GuideCache, ATextThatWantsMoreGets503BeforeItRunsAndThen) {
  for (const int64_t bytes : {1, 64 << 10}) {
    TinyModel tiny;
    tiny.model.guides = std::make_shared<GuideCache>(bytes);
    const Server server(tiny.model, {.http = {.port = 0}});
    const Answer answer = ask(server.port(), "POST", "/v1/completions",
                              R"({"prompt": "Hi", "max_tokens": 150, "structured_outputs": {"regex": "[a-z]{200}"}})");
    EXPECT_EQ(answer.status, 503) << answer.body;
    EXPECT_NE(answer.body.find("all guides together take more than"), std::string::npos) << answer.body;
    EXPECT_EQ(tiny.engine->stats().steps > 0, bytes > 1);
  }
}

}  // namespace
}  // namespace octet::serve
