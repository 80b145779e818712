#include "serve/response_store.h"

#include <utility>

namespace octet::serve {
namespace {

int64_t size_of(const ResponseStore::Entry& entry) {
  return static_cast<int64_t>(entry.body.size() + entry.messages.size());
}

}  // namespace

void ResponseStore::OfKey::drop(const std::string& id) {
  const auto found = by_id.find(id);
  bytes -= size_of(*found->second.entry);
  ids.erase(found->second.number);
  by_id.erase(found);
}

void ResponseStore::put(const std::string& key, const std::string& id, Entry entry) {
  const int64_t size = size_of(entry);
  if (size > bounds_.bytes || bounds_.responses == 0) return;
  const std::lock_guard lock(mutex_);
  OfKey& of_key = keys_[key];
  while (static_cast<int64_t>(of_key.ids.size()) >= bounds_.responses || of_key.bytes + size > bounds_.bytes)
    of_key.drop(std::string(of_key.ids.begin()->second));
  of_key.bytes += size;
  of_key.ids[next_] = id;
  of_key.by_id[id] = {next_++, std::make_shared<const Entry>(std::move(entry))};
}

std::shared_ptr<const ResponseStore::Entry> ResponseStore::find(const std::string& key, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto of_key = keys_.find(key);
  if (of_key == keys_.end()) return nullptr;
  const auto found = of_key->second.by_id.find(id);
  return found != of_key->second.by_id.end() ? found->second.entry : nullptr;
}

bool ResponseStore::remove(const std::string& key, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto of_key = keys_.find(key);
  if (of_key == keys_.end() || !of_key->second.by_id.contains(id)) return false;
  of_key->second.drop(id);
  return true;
}

}  // namespace octet::serve
