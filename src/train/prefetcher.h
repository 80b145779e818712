// Micro-batches of the next step, made on another thread while this one computes.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <vector>

#include "train/batches.h"

namespace octet {

class Prefetcher {
 public:
  Prefetcher(const TrainingBatches& batches, int64_t accumulation, int64_t first_step)
      : batches_(batches), accumulation_(accumulation) {
    start(first_step);
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() { left_ = true; }  // the thread ends before next_ does

  // Those of `step`; empty once `stop` says so while they are waited for.
  template <typename Stop>
  std::vector<HostBatch> take(int64_t step, const Stop& stop) {
    while (next_.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready)
      if (stop()) return {};
    std::vector<HostBatch> ready = next_.get();
    start(step + 1);
    return ready;
  }

 private:
  void start(int64_t step) {
    next_ = std::async(std::launch::async, [this, step] {
      std::vector<HostBatch> made(static_cast<size_t>(accumulation_));
      for (int64_t i = 0; i < accumulation_ && !left_; ++i)
        batches_.get((step - 1) * accumulation_ + i, made[static_cast<size_t>(i)]);
      return made;
    });
  }
  const TrainingBatches& batches_;
  int64_t accumulation_;
  std::atomic<bool> left_ = false;
  std::future<std::vector<HostBatch>> next_;
};

}  // namespace octet
