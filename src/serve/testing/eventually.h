// For tests: waiting for what other threads do.
#pragma once

#include <chrono>
#include <thread>

namespace octet::serve {

// Whether it comes to hold within 20 s.
template <typename Condition>
bool eventually(const Condition& holds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace octet::serve
