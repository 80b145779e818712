#include "base/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"

namespace octet {
namespace {

class Threads : public ::testing::Test {
 protected:
  void TearDown() override { set_thread_count(0); }
};

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

Ranges ranges_of(int64_t count, int64_t grain) {
  Ranges ranges;
  std::mutex mutex;
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST_F(Threads, RangesCoverOnceAndRespectTheGrain) {
  for (int threads : {1, 2, 3, 8}) {
    set_thread_count(threads);
    for (int64_t count : {0, 1, 5, 64, 1000}) {
      for (int64_t grain : {0, 1, 7, 64, 2000}) {
        Ranges ranges = ranges_of(count, grain);
        int64_t expected = 0;
        for (auto [begin, end] : ranges) {
          EXPECT_EQ(begin, expected);
          EXPECT_GT(end, begin);
          EXPECT_TRUE(ranges.size() == 1 || end - begin >= grain);
          expected = end;
        }
        EXPECT_EQ(expected, count);
        EXPECT_LE(static_cast<int>(ranges.size()), threads);
      }
    }
  }
}

TEST_F(Threads, NestedCallsUseTheSameSplit) {
  set_thread_count(4);
  Ranges outside = ranges_of(100, 1);
  parallel_for(2, 1, [&](int64_t, int64_t) { EXPECT_EQ(ranges_of(100, 1), outside); });
}

TEST_F(Threads, TheLowestPartsExceptionComesOutAfterAllFinished) {
  set_thread_count(4);
  std::atomic<int> finished{0};
  try {
    parallel_for(4, 1, [&](int64_t begin, int64_t) {
      ++finished;
      if (begin > 0) fail(ErrorCode::kInternal, "part {}", begin);
    });
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "part 1");
  }
  EXPECT_EQ(finished, 4);
  EXPECT_THROW(parallel_threads([](int, int) { fail(ErrorCode::kInternal, "thread"); }), Error);
}

TEST_F(Threads, EachThreadOnce) {
  set_thread_count(3);
  std::vector<int> seen(3);
  int announced = 0;
  parallel_threads([&](int thread, int threads) {
    ++seen[thread];
    if (thread == 0) announced = threads;
  });
  for (int thread = 0; thread < announced; ++thread) EXPECT_EQ(seen[thread], 1);
  EXPECT_THROW(set_thread_count(-1), Error);
  set_thread_count(0);
  EXPECT_GE(thread_count(), 1);
}

// The kernel's count of the process's threads.
int64_t running_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

TEST_F(Threads, AReleasedPoolEndsAndTheNextOneComputes) {
  const int64_t alone = running_threads();
  set_thread_count(3);
  std::thread([&] {  // whose pool is its own
    ranges_of(100, 1);
    const int64_t busy = running_threads();
    if (busy == alone + 1) return;  // built to run serially
    release_threads();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (running_threads() > busy - 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_EQ(running_threads(), busy - 2);
    EXPECT_EQ(ranges_of(100, 1).size(), 3u);
  })
      .join();
}

}  // namespace
}  // namespace octet
