#include "serve/reader_pool.h"

#include <gtest/gtest.h>

#include <future>

namespace octet::serve {
namespace {

TEST(ReaderPool, SmallOnesGoPastLargeOnes) {
  ReaderPool pool(2);
  std::promise<void> open, last;
  const std::shared_future<void> opened = open.get_future().share();
  for (int i = 0; i < 4; ++i)
    pool.add(
        [&, i] {
          opened.wait();
          if (i == 3) last.set_value();
        },
        /*large=*/true);
  for (int i = 0; i < 20; ++i) {
    std::promise<void> done;
    pool.add([&] { done.set_value(); }, /*large=*/false);
    ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready) << i;
  }
  open.set_value();
  EXPECT_EQ(last.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

}  // namespace
}  // namespace octet::serve
