// Micro-batches of the next step, made on another thread while this one computes.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <vector>

#include "train/objective.h"

namespace octet {

class Prefetcher {
 public:
  Prefetcher(const Objective& objective, int64_t accumulation, int64_t first_step)
      : objective_(objective), accumulation_(accumulation) {
    start(first_step);
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() { left_ = true; }  // the future's destructor waits for the thread

  // The micro-batches of `step`; empty if `stop` returns true while waiting for them.
  template <typename Stop>
  std::vector<Batch> take(int64_t step, const Stop& stop) {
    while (next_.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready)
      if (stop()) return {};
    std::vector<Batch> ready = next_.get();
    start(step + 1);
    return ready;
  }

 private:
  void start(int64_t step) {
    next_ = std::async(std::launch::async, [this, step] {
      std::vector<Batch> made(static_cast<size_t>(accumulation_));
      for (int64_t i = 0; i < accumulation_ && !left_; ++i)
        made[static_cast<size_t>(i)] = objective_.get((step - 1) * accumulation_ + i);
      return made;
    });
  }
  const Objective& objective_;
  int64_t accumulation_;
  std::atomic<bool> left_ = false;
  std::future<std::vector<Batch>> next_;
};

}  // namespace octet
