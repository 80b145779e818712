// Maps the text of GenerationRequest::cache_salt to the number that keys cached blocks. Numbers are unique, not hashes:
// tenants whose hashes collide would share cached content. The table is bounded: an evicted salt gets a new number and
// no longer finds its blocks in the cache.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

namespace octet {

class TenantSalts {
 public:
  explicit TenantSalts(size_t max_bytes = size_t{16} << 20) : max_bytes_(max_bytes) {}

  // 0 for an empty salt, else a number that is never reused for another salt.
  uint64_t number_of(const std::string& text) {
    if (text.empty()) return 0;
    if (const auto found = numbers_.find(text); found != numbers_.end()) return found->second;
    const size_t cost = text.size() + kEntryBytes;
    if (bytes_ + cost > max_bytes_) {
      numbers_.clear();
      bytes_ = 0;
    }
    bytes_ += cost;
    return numbers_[text] = ++last_;
  }
  size_t remembered() const { return numbers_.size(); }

 private:
  static constexpr size_t kEntryBytes = 96;  // without the text, about
  size_t max_bytes_, bytes_ = 0;
  uint64_t last_ = 0;
  std::unordered_map<std::string, uint64_t> numbers_;
};

}  // namespace octet
