#include "infer/stop_matcher.h"

#include <algorithm>

#include "base/error.h"

namespace octet {
namespace {

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t partial_match(const std::string& text, const std::string& stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length)
    if (text.compare(text.size() - length, length, stop, 0, length) == 0) return length;
  return 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    check(!stop.empty(), ErrorCode::kInvalidArgument, "stop: an empty stop string would end every text at once");
}

std::string StopMatcher::push(const std::string& text) {
  held_ += text;
  size_t found = std::string::npos, keep = 0;
  for (const std::string& stop : stops_) {
    found = std::min(found, held_.find(stop));
    keep = std::max(keep, partial_match(held_, stop));
  }
  if (found != std::string::npos) {
    stopped_ = true;
    std::string certain = held_.substr(0, found);
    held_.clear();
    return certain;
  }
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return certain;
}

}  // namespace octet
