#include "serve/template_cache.h"

#include <algorithm>

namespace octet::serve {

std::shared_ptr<const ChatTemplate> TemplateCache::get(const std::string& source) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(entries_, source, &Entry::first);
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
      return found->second;
    }
  }
  auto parsed = std::make_shared<const ChatTemplate>(source, "chat_template");
  const std::lock_guard lock(mutex_);
  entries_.emplace_front(source, parsed);
  if (entries_.size() > kMax) entries_.pop_back();
  return parsed;
}

}  // namespace octet::serve
