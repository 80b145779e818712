// Filling device memory from the host: bytes are made in one pinned buffer while those of another are on their way.
#pragma once

#include <cuda_runtime_api.h>

#include <array>

#include "exec/cuda/device_memory.h"
#include "exec/executor.h"

namespace octet::cuda {

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
