// A number for the text of GenerationRequest::cache_salt, under which cached blocks are found again: its own for every
// text, not a hash of it, for tenants whose hashes collide would share cached content. What is remembered is bounded: a
// text forgotten meanwhile gets a new number, and no longer finds what it left in the cache.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

namespace octet {

class TenantSalts {
 public:
  explicit TenantSalts(size_t max_bytes = size_t{16} << 20) : max_bytes_(max_bytes) {}

  // 0 for no text, else a number that no other text ever has.
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
  static constexpr size_t kEntryBytes = 96;  // beside the text, about
  size_t max_bytes_, bytes_ = 0;
  uint64_t last_ = 0;
  std::unordered_map<std::string, uint64_t> numbers_;
};

}  // namespace octet
