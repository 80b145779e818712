// Which adapters lie on the device, each in a slot of its class. Policy only: who reads the slot decides what is
// written there and when. Of a class that is full, the adapter used least recently of which nothing runs gives its slot
// away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace octet {

class AdapterSlots {
 public:
  AdapterSlots(int64_t classes, int64_t slots_per_class)
      : slots_(static_cast<size_t>(classes * slots_per_class)), per_class_(slots_per_class) {}

  // False: every slot of the class belongs to an adapter that runs.
  bool make_resident(uint64_t adapter, int64_t of_class) {
    if (const auto found = by_adapter_.find(adapter); found != by_adapter_.end()) return touch(found->second);
    int64_t oldest = -1;
    for (int64_t s = of_class * per_class_; s < (of_class + 1) * per_class_; ++s)
      if (at(s).running == 0 && (oldest < 0 || at(s).used < at(oldest).used)) oldest = s;
    if (oldest < 0) return false;
    if (at(oldest).adapter != 0) by_adapter_.erase(at(oldest).adapter);
    at(oldest) = {.adapter = adapter};
    by_adapter_[adapter] = oldest;
    return touch(oldest);
  }
  // class * slots + slot; -1: of no adapter, or of one that is not on the device.
  int32_t slot(uint64_t adapter) const {
    const auto found = by_adapter_.find(adapter);
    return found == by_adapter_.end() ? -1 : static_cast<int32_t>(found->second);
  }
  // A sequence begins or ends to run with an adapter that has a slot.
  void add_running(uint64_t adapter, int64_t sequences) { at(by_adapter_.at(adapter)).running += sequences; }

 private:
  struct Slot {
    uint64_t adapter = 0;
    int64_t running = 0, used = 0;
  };
  Slot& at(int64_t s) { return slots_[static_cast<size_t>(s)]; }
  bool touch(int64_t s) {
    at(s).used = ++clock_;
    return true;
  }

  std::vector<Slot> slots_;
  int64_t per_class_, clock_ = 0;
  std::unordered_map<uint64_t, int64_t> by_adapter_;
};

}  // namespace octet
