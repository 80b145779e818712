// API keys: who may ask, how much, and with what priority. Kept as SHA-256 hashes in a file; a key itself is never kept
// or logged.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octet::serve {

// Limits of one key; 0: none.
struct KeyLimits {
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;  // of prompts and answers
  int64_t texts = 0;              // at once
  int32_t priority = 0;           // higher runs first
};

struct ApiKey {
  std::string name;  // in logs
  std::string hash;  // SHA-256 of the key, 64 hex digits
  KeyLimits limits;
  bool admin = false;                    // may load and unload adapters
  std::vector<std::string> models = {};  // names of the model and of adapters that it may ask for; empty: all
};

// Of a file of lines in JSON, {"name": ..., "sha256": ..., "requests_per_minute": ...}; lines that are empty or begin
// with '#' are none. Throws kInvalidArgument or kCorrupt naming file, line and field; names and hashes are unique.
std::vector<ApiKey> read_keys(const std::string& path);

// A new key, of 256 random bits: "octet-" and 43 characters. The line of the file that admits it.
std::string make_key();
std::string key_line(const std::string& name, std::string_view key);

// The key that a header's "Bearer <key>" or "<key>" is, as an index into `keys`; -1: none. Takes as long for every text
// of one length.
int64_t find_key(const std::vector<ApiKey>& keys, std::string_view authorization);

}  // namespace octet::serve
