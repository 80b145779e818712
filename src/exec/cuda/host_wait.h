// How the host waits for the device. Where a graph has collectives it asks, so that a lost rank ends the wait: a kernel
// that waits for a peer which is gone never returns.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "base/threads.h"
#include "kernels/cuda/collective/ranks.h"

namespace octet::cuda {

class HostWait {
 public:
  HostWait() = default;  // of a program of one rank: CUDA's own waits
  // `drop_graphs` destroys the captured graphs, for whose end NCCL waits when it aborts.
  HostWait(DeviceRanks& ranks, std::function<void()> drop_graphs)
      : ranks_(&ranks), drop_graphs_(std::move(drop_graphs)) {}

  bool asks() const { return ranks_ != nullptr; }
  // Until what is before has ended; CUDA's status. Throw what DeviceRanks::check throws, after the device's collectives
  // were aborted, and kIo where they were aborted before.
  cudaError_t event(cudaEvent_t event) const {
    return asks() ? ask([&] { return cudaEventQuery(event); }) : cudaEventSynchronize(event);
  }
  cudaError_t stream(cudaStream_t stream) const {
    return asks() ? ask([&] { return cudaStreamQuery(stream); }) : cudaStreamSynchronize(stream);
  }

 private:
  cudaError_t ask(FunctionRef<cudaError_t()> query) const;

  DeviceRanks* ranks_ = nullptr;
  std::function<void()> drop_graphs_;
};

}  // namespace octet::cuda
