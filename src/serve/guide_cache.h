// Guides of requests: each made once as long as it is asked for, all of them bounded in memory together.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "chat/guide.h"

namespace octet::serve {

class GuideCache {
 public:
  using Make = std::function<std::shared_ptr<const Guide>(const GuideLimits&)>;

  explicit GuideCache(int64_t most_bytes = int64_t{1} << 30) : memory_(std::make_shared<GuideMemory>(most_bytes)) {}
  // The guide of this source, which names the API key too: the time that it takes shows no key what others ask for.
  // Throws as `make`, and ApiError 503 where the guides of running texts take all the memory. From any thread.
  std::shared_ptr<const Guide> get(const std::string& source, const Make& make);

 private:
  static constexpr size_t kMax = 64;             // guides that no request has any more
  static constexpr size_t kMaxSource = 1 << 16;  // bytes; of a longer one each request has its own
  using Entry = std::pair<std::string, std::shared_ptr<const Guide>>;

  std::shared_ptr<const Guide> find(const std::string& source);
  void make_room();

  const std::shared_ptr<GuideMemory> memory_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

}  // namespace octet::serve
