// Micro-batches of the next step, made on another thread while this one computes.
#pragma once

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
  std::vector<HostBatch> take(int64_t step) {
    std::vector<HostBatch> ready = next_.get();
    start(step + 1);
    return ready;
  }

 private:
  void start(int64_t step) {
    next_ = std::async(std::launch::async, [this, step] {
      std::vector<HostBatch> made(static_cast<size_t>(accumulation_));
      for (int64_t i = 0; i < accumulation_; ++i)
        batches_.get((step - 1) * accumulation_ + i, made[static_cast<size_t>(i)]);
      return made;
    });
  }
  const TrainingBatches& batches_;
  int64_t accumulation_;
  std::future<std::vector<HostBatch>> next_;
};

}  // namespace octet
