#include "serve/guide_cache.h"

#include <algorithm>

#include "base/error.h"
#include "octet/engine.h"
#include "serve/fields.h"

namespace octet::serve {
namespace {

constexpr double kWorn = 0.5;  // of its states: more texts might not end within the rest

}  // namespace

std::shared_ptr<const Guide> GuideCache::find(const std::string& source) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, source, &Entry::first);
  if (found == entries_.end()) return nullptr;
  if (guide_fill(*found->second) > kWorn) {
    entries_.erase(found);
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, found);
  return found->second;
}

// Running texts may want as much as what is kept for later ones.
void GuideCache::make_room() {
  const std::lock_guard lock(mutex_);
  for (auto at = entries_.end(); at != entries_.begin() && memory_->used > memory_->most / 2;)
    if ((--at)->second.use_count() == 1) at = entries_.erase(at);
}

std::shared_ptr<const Guide> GuideCache::get(const std::string& source, const Make& make) {
  if (auto kept = find(source)) return kept;
  make_room();
  std::shared_ptr<const Guide> made;
  try {
    made = make({.memory = memory_});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kOutOfMemory)
      throw ApiError(error.message(), {}, 503, error_kind_name(ErrorKind::kQueueFull));
    throw;
  }
  if (source.size() > kMaxSource) return made;
  const std::lock_guard lock(mutex_);
  entries_.emplace_front(source, made);
  if (entries_.size() > kMax) entries_.pop_back();
  return made;
}

}  // namespace octet::serve
