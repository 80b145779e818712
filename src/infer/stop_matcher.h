// Finds the first stop string in a growing text and holds back what could still become one. Pure.
#pragma once

#include <string>
#include <vector>

namespace octet {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops = {});  // an empty stop string is refused
  // Text that is certain not to be part of a stop string. `stopped` becomes true when one was found.
  std::string push(const std::string& text);
  std::string finish() { return std::move(held_); }
  bool stopped() const { return stopped_; }
  bool empty() const { return stops_.empty(); }  // nothing to look for

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace octet
