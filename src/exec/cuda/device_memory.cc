#include "exec/cuda/device_memory.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/context.h"

namespace octet::cuda {

int64_t free_device_bytes() {
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
  return static_cast<int64_t>(free);
}

Memory::Memory(MemoryKind kind, int64_t bytes, const std::string& purpose) : kind_(kind), bytes_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  const auto size = static_cast<size_t>(bytes);
  const cudaError_t status = kind == MemoryKind::kDevice ? cudaMalloc(&data, size) : cudaMallocHost(&data, size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail(ErrorCode::kOutOfMemory, "{}: {} bytes are wanted and the {} has {} free", purpose, bytes,
         kind == MemoryKind::kDevice ? "GPU" : "host's pinned memory", free_device_bytes());
  }
  check_cuda(status, purpose.c_str());
  data_ = static_cast<std::byte*>(data);
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  kind_ == MemoryKind::kDevice ? cudaFree(data_) : cudaFreeHost(data_);
}

}  // namespace octet::cuda
