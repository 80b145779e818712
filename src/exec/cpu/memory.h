// One piece of anonymous memory from the operating system, zero-filled, 2 MiB aligned, on huge pages where allowed.
//
// The executor takes all its memory through this class, so that what it holds is what the plan says: pages nobody
// touches cost nothing. It must not be used per node or per run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace octet::cpu {

class MappedMemory {
 public:
  MappedMemory() = default;
  // Throws kOutOfMemory naming `purpose` and the bytes that are missing.
  MappedMemory(int64_t bytes, const std::string& purpose);
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// What a process may still take: MemAvailable, bounded by the cgroup's limit. 0 = unknown.
int64_t available_memory_bytes();

}  // namespace octet::cpu
