// Finds the first stop string in streamed text and holds back a suffix that could become one. Pure.
#pragma once

#include <string>
#include <vector>

namespace octet {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops = {});  // throws for an empty stop string
  // Returns the text that cannot be part of a stop string. stopped() becomes true when one is found.
  std::string push(const std::string& text);
  std::string finish() { return std::move(held_); }
  bool stopped() const { return stopped_; }
  bool empty() const { return stops_.empty(); }  // no stop strings

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace octet
