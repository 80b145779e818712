#include "serve/ignored_fields.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"

namespace octet::serve {

std::string IgnoredFields::name(const std::vector<std::string>& fields) {
  constexpr size_t kMostNames = 16, kMostBytes = 64, kMostTold = 256;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(fields.size(), kMostNames); ++i) {
    std::string name = fields[i].substr(0, kMostBytes);
    std::ranges::replace_if(
        name, [](char c) { return c <= ' ' || c > '~' || c == ','; }, '?');
    names.push_back(std::move(name));
  }
  const std::lock_guard lock(mutex_);
  for (const std::string& name : names)
    if (told_.size() < kMostTold && told_.insert(name).second)
      log_warning("requests have a field '{}', which is not known and ignored", name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace octet::serve
