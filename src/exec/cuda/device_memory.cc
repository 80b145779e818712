#include "exec/cuda/device_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/log.h"
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
  if (data_ == nullptr || shared_ != nullptr) return;
  kind_ == MemoryKind::kDevice ? cudaFree(data_) : cudaFreeHost(data_);
}

constexpr int64_t kBufferBytes = int64_t{32} << 20;

Upload::~Upload() {
  for (Buffer& buffer : buffers_) {
    if (buffer.copied == nullptr) continue;
    cudaEventSynchronize(buffer.copied);
    cudaEventDestroy(buffer.copied);
  }
  if (bytes_ > 0)
    log_debug("states filled: {:.2f} GB, {:.3f} s of it waiting", static_cast<double>(bytes_) / 1e9, waited_);
}

void Upload::copy(std::byte* to, int64_t bytes, int64_t grain, cudaStream_t stream, Executor::MakeBytes make) {
  const int64_t piece = std::max<int64_t>(kBufferBytes / grain, 1) * grain;
  for (int64_t at = 0; at < bytes; at += piece) {
    Buffer& buffer = buffers_[next_++ % buffers_.size()];
    const auto begin = std::chrono::steady_clock::now();
    if (buffer.copied == nullptr) {
      check_cuda(cudaEventCreateWithFlags(&buffer.copied, cudaEventDisableTiming), "making an event");
    } else {
      check_cuda(cudaEventSynchronize(buffer.copied), "filling a state");
    }
    const int64_t length = std::min(piece, bytes - at);
    if (buffer.memory.bytes() < length)
      buffer.memory = Memory(MemoryKind::kPinned, std::max(length, kBufferBytes), "staging of states");
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    bytes_ += length;
    make(at, {buffer.memory.data(), static_cast<size_t>(length)});
    check_cuda(
        cudaMemcpyAsync(to + at, buffer.memory.data(), static_cast<size_t>(length), cudaMemcpyHostToDevice, stream),
        "filling a state");
    check_cuda(cudaEventRecord(buffer.copied, stream), "filling a state");
  }
}

}  // namespace octet::cuda
