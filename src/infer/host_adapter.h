// An adapter in host memory, and a request's hold on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace octet {

// What a slot's part of a state holds.
struct SlotBytes {
  std::string state;
  int64_t first = 0;  // bytes of the state in front of slot 0
  std::vector<std::byte> bytes = {};
  int64_t pieces = 1, apart = 0;  // of experts, one each: where they begin, in bytes
};

struct HostAdapter {
  std::string name, folder;
  uint64_t id = 0;       // never another one's; not 0
  int64_t of_class = 0;  // AdapterTables::classes()
  int64_t rank = 0;      // the highest
  int64_t virtual_tokens = 0;
  std::vector<SlotBytes> parts = {};
  // Requests that are queued and that run.
  mutable std::atomic<int64_t> waiting = 0, running = 0;
};

// A request's hold on its adapter, and its count among the adapter's.
class AdapterUse {
 public:
  AdapterUse() = default;
  explicit AdapterUse(std::shared_ptr<const HostAdapter> adapter) : adapter_(std::move(adapter)) {
    ++adapter_->waiting;
  }
  AdapterUse(AdapterUse&& other) noexcept : adapter_(std::move(other.adapter_)), runs_(other.runs_) {}
  AdapterUse& operator=(AdapterUse&& other) noexcept {
    std::swap(adapter_, other.adapter_), std::swap(runs_, other.runs_);
    return *this;
  }
  ~AdapterUse() {
    if (adapter_) --(runs_ ? adapter_->running : adapter_->waiting);
  }
  void runs() {
    if (adapter_ && !runs_) --adapter_->waiting, ++adapter_->running, runs_ = true;
  }
  const HostAdapter* get() const { return adapter_.get(); }

 private:
  std::shared_ptr<const HostAdapter> adapter_;
  bool runs_ = false;
};

}  // namespace octet
