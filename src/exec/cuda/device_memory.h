// Device and pinned host memory of an executor: taken once, freed at its end. Never used per node or per run. And
// filling it from the host.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "exec/executor.h"

namespace octet::cuda {

enum class MemoryKind { kDevice, kPinned };

class Memory {
 public:
  Memory() = default;
  // Throws kOutOfMemory naming `purpose`, the bytes wanted and the bytes free.
  Memory(MemoryKind kind, int64_t bytes, const std::string& purpose);
  Memory(std::shared_ptr<std::byte> shared, int64_t bytes)  // allocated elsewhere
      : shared_(std::move(shared)), data_(shared_.get()), bytes_(bytes) {}
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(kind_, other.kind_), std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~Memory();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  MemoryKind kind_ = MemoryKind::kDevice;
  std::shared_ptr<std::byte> shared_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Bytes free on the current device.
int64_t free_device_bytes();

// Bytes are made in one pinned buffer while those of another are on their way.
class Upload {
 public:
  Upload() = default;
  Upload(const Upload&) = delete;
  ~Upload();

  // Returns when all bytes are made: copies are still under way on the stream, from buffers that belong to this object.
  void copy(std::byte* to, int64_t bytes, int64_t grain, cudaStream_t stream, Executor::MakeBytes make);

 private:
  struct Buffer {
    Memory memory;  // allocated by the first use
    cudaEvent_t copied = nullptr;
  };
  std::array<Buffer, 3> buffers_;  // one being made, one on its way, one for the unevenness of both
  size_t next_ = 0;
  int64_t bytes_ = 0;  // copied so far,
  double waited_ = 0;  // and seconds for buffers: their allocation, copies that had not ended
};

}  // namespace octet::cuda
