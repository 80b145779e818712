// Threads that read requests: JSON, templates, tokens. Large ones have at most half of the threads, so that small ones
// go past them, and what they took of memory goes back to the system.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace octet::serve {

class ReaderPool {
 public:
  explicit ReaderPool(int64_t threads);  // two at least
  ~ReaderPool();                         // what waits is dropped
  ReaderPool(const ReaderPool&) = delete;

  // False: too many wait.
  bool add(std::function<void()> task, bool large);

 private:
  using Tasks = std::deque<std::function<void()>>;
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  Tasks small_, large_;
  int64_t large_running_ = 0, large_most_ = 1;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace octet::serve
