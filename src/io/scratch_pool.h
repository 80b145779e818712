// A pool of buffers that threads borrow; it grows to the maximum number in use at once.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace octet {

template <typename Scratch>
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    {
      std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto scratch = std::move(idle_.back());
        idle_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<Scratch>();
  }
  void give_back(std::unique_ptr<Scratch> scratch) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace octet
