// Fields of requests that no one knows: named to the client in the reply's head, and once each in the log.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace octet::serve {

class IgnoredFields {
 public:
  // The value of X-Ignored-Fields: at most 16 names of 64 printable bytes. The log gets at most 256 names.
  std::string name(const std::vector<std::string>& fields);

 private:
  std::mutex mutex_;
  std::set<std::string> told_;
};

}  // namespace octet::serve
