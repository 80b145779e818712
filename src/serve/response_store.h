// Responses that are kept for GET and for previous_response_id: of each API key the last ones, so that no key reads or
// pushes out another's. In memory only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace octet::serve {

class ResponseStore {
 public:
  struct Entry {
    std::string body;      // the response, as JSON
    std::string messages;  // the conversation with its output, as JSON of chat completions, without instructions
  };
  struct Bounds {  // of each key; the oldest are dropped first
    int64_t responses = 0;
    int64_t bytes = 0;  // of entries; a larger one is not kept
  };
  explicit ResponseStore(const Bounds& bounds) : bounds_(bounds) {}

  // From any thread. `key`: the name of the API key; empty: none is asked for.
  void put(const std::string& key, const std::string& id, Entry entry);
  std::shared_ptr<const Entry> find(const std::string& key, const std::string& id) const;  // nullptr: not there
  bool remove(const std::string& key, const std::string& id);                              // whether it was there

 private:
  struct Held {
    int64_t number = 0;
    std::shared_ptr<const Entry> entry;
  };
  struct OfKey {
    std::map<std::string, Held> by_id;
    std::map<int64_t, std::string> ids;  // by number: the oldest first
    int64_t bytes = 0;
    void drop(const std::string& id);
  };

  const Bounds bounds_;
  mutable std::mutex mutex_;
  std::map<std::string, OfKey> keys_;
  int64_t next_ = 0;
};

}  // namespace octet::serve
