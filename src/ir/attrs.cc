#include "ir/signature.h"

#include <algorithm>

#include "base/error.h"

namespace octet {
namespace {

bool key_less(const std::pair<std::string, Attr>& entry, std::string_view key) { return entry.first < key; }

}  // namespace

void throw_bad_attr(std::string_view key, bool present) {
  fail(ErrorCode::kInternal, "attribute {} {}", key, present ? "is of another type than asked for" : "is missing");
}

Attrs::Attrs(std::initializer_list<std::pair<std::string, Attr>> list) {
  entries_.reserve(list.size());
  for (const auto& [key, value] : list) set(key, value);
}

void Attrs::set(std::string_view key, Attr value) {
  auto at = std::lower_bound(entries_.begin(), entries_.end(), key, key_less);
  if (at != entries_.end() && at->first == key) {
    at->second = std::move(value);
  } else {
    entries_.emplace(at, std::string(key), std::move(value));
  }
}

void Attrs::erase(std::string_view key) {
  auto at = std::lower_bound(entries_.begin(), entries_.end(), key, key_less);
  if (at != entries_.end() && at->first == key) entries_.erase(at);
}

const Attr* Attrs::find(std::string_view key) const {
  for (const auto& entry : entries_) {  // a handful of entries: a scan beats a search
    if (entry.first == key) return &entry.second;
  }
  return nullptr;
}

}  // namespace octet
