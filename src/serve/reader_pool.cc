#include "serve/reader_pool.h"

#include <malloc.h>

#include <algorithm>
#include <utility>

namespace octet::serve {
namespace {

constexpr size_t kMax = 20'000;  // tasks that wait

}  // namespace

ReaderPool::ReaderPool(int64_t threads) {
  threads = std::max<int64_t>(threads, 2);
  large_most_ = threads / 2;
  for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

ReaderPool::~ReaderPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool ReaderPool::add(std::function<void()> task, bool large) {
  {
    const std::lock_guard lock(mutex_);
    if (small_.size() + large_.size() >= kMax) return false;
    (large ? large_ : small_).push_back(std::move(task));
  }
  changed_.notify_one();
  return true;
}

void ReaderPool::work() {
  for (;;) {
    std::function<void()> task;
    bool large = false;
    {
      std::unique_lock lock(mutex_);
      const auto may_large = [&] { return !large_.empty() && large_running_ < large_most_; };
      changed_.wait(lock, [&] { return stop_ || may_large() || !small_.empty(); });
      if (stop_) return;
      large = may_large();
      Tasks& tasks = large ? large_ : small_;
      task = std::move(tasks.front());
      tasks.pop_front();
      large_running_ += large ? 1 : 0;
    }
    task();
    if (!large) continue;
    task = nullptr;
    malloc_trim(0);  // the allocator would keep what it has freed, ten times the body
    {
      const std::lock_guard lock(mutex_);
      --large_running_;
    }
    changed_.notify_one();
  }
}

}  // namespace octet::serve
