// Device and pinned host memory of an executor: taken once, freed at its end. Never used per node or per run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace octet::cuda {

enum class MemoryKind { kDevice, kPinned };

class Memory {
 public:
  Memory() = default;
  // Throws kOutOfMemory naming `purpose`, the bytes wanted and the bytes free.
  Memory(MemoryKind kind, int64_t bytes, const std::string& purpose);
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(kind_, other.kind_), std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  MemoryKind kind_ = MemoryKind::kDevice;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Bytes free on the current device.
int64_t free_device_bytes();

}  // namespace octet::cuda
