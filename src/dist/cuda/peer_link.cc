#include "dist/cuda/peer_link.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/context.h"

namespace octet {
namespace {

using cuda::check_cuda;

constexpr int64_t kWordBytes = 256;
constexpr uint32_t kBoxes = 2;
constexpr int kReleased = 0x3f;  // of every byte of a word: more calls than there ever are

void check_driver(CUresult result, const char* what) {
  check(result == CUDA_SUCCESS, ErrorCode::kInternal, "CUDA: {}: error {}", what, static_cast<int>(result));
}

}  // namespace

PeerLink::PeerLink(PeerMemory& memory, int32_t own, int32_t other, bool sends, int64_t bytes) : bytes_(bytes) {
  pad_ = memory.allocate({std::min(own, other), std::max(own, other)}, kWordBytes + kBoxes * bytes,
                         "a link of two stages", [&](std::byte* word) {
                           const uint32_t told = sends ? kBoxes : 0;  // boxes that are free; that are full
                           check_cuda(cudaMemcpy(word, &told, sizeof(told), cudaMemcpyHostToDevice), "a link");
                         });
  own_ = pad_->own;
  other_ = pad_->at[own < other ? 1 : 0];
}

void PeerLink::wait(uint32_t calls, Stream stream) const {
  static const auto call =
      reinterpret_cast<decltype(&cuStreamWaitValue32)>(cuda::driver_function("cuStreamWaitValue32"));
  check_driver(call(stream, reinterpret_cast<CUdeviceptr>(own_), calls, CU_STREAM_WAIT_VALUE_GEQ),
               "waiting for a stage");
}

void PeerLink::signal(uint32_t calls, Stream stream) const {
  static const auto call =
      reinterpret_cast<decltype(&cuStreamWriteValue32)>(cuda::driver_function("cuStreamWriteValue32"));
  check_driver(call(stream, reinterpret_cast<CUdeviceptr>(other_), calls, CU_STREAM_WRITE_VALUE_DEFAULT),
               "telling a stage");
}

std::byte* PeerLink::box(std::byte* memory) const {
  return memory + kWordBytes + static_cast<int64_t>(calls_ % kBoxes) * bytes_;
}

void PeerLink::send(const void* x, Stream stream) {
  ++calls_;
  wait(calls_, stream);
  check_cuda(cudaMemcpyAsync(box(other_), x, static_cast<size_t>(bytes_), cudaMemcpyDefault, stream), "sending");
  signal(calls_, stream);
}

void PeerLink::receive(void* y, Stream stream) {
  ++calls_;
  wait(calls_, stream);
  check_cuda(cudaMemcpyAsync(y, box(own_), static_cast<size_t>(bytes_), cudaMemcpyDefault, stream), "receiving");
  signal(calls_ + kBoxes, stream);
}

void PeerLink::abort() {
  cudaStream_t stream = nullptr;  // of its own: others wait
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return;
  cudaMemsetAsync(own_, kReleased, sizeof(uint32_t), stream);
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
}

}  // namespace octet
