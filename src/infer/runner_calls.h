// The calls of a runner as bytes: what rank 0 tells the ranks that follow it, so that all make the same calls with the
// same inputs.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "infer/runner.h"

namespace octet {

using CallBytes = std::vector<std::byte>;

CallBytes copy_blocks_call(std::span<const BlockCopy> copies);
CallBytes forward_call(const StepInput& input);
CallBytes sample_call(const SampleInput& input);
CallBytes wait_call();
// Makes the call. Throws kInternal for bytes that are none.
void make_call(Runner& runner, std::span<const std::byte> call);

// Calls on their way to one rank, in order.
class CallQueue {
 public:
  void push(std::shared_ptr<const CallBytes> call);
  void close();                            // after what is there already
  std::shared_ptr<const CallBytes> pop();  // waits; null: closed. The one before has been made
  int64_t unmade() const;                  // that is under way or waits

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<const CallBytes>> calls_;
  bool closed_ = false, making_ = false;
};

}  // namespace octet
