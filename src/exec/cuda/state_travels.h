// States on their way between ranks, beside kernels: each by a link and on a stream of its own, never in a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "exec/cuda/host_wait.h"
#include "ir/graph.h"
#include "kernels/cuda/collective/ranks.h"
#include "kernels/cuda/context.h"

namespace octet::cuda {

class StateTravels {
 public:
  StateTravels() = default;
  StateTravels(const StateTravels&) = delete;
  ~StateTravels();

  // Behind what is on the kernels' stream so far. The first call of a state makes its link, with the other rank. False:
  // there are no links here.
  bool move(DeviceContext& context, const std::string& state, std::byte* data, int64_t bytes, int32_t other,
            bool sends);
  // The stream waits for those states that the graph reads or writes.
  void settle(const Graph& graph, cudaStream_t stream);
  void wait(const HostWait& wait) const;  // until all so far have ended

 private:
  struct Travel {
    std::shared_ptr<DeviceLink> link;
    cudaStream_t stream = nullptr;
    cudaEvent_t begun = nullptr, ended = nullptr;
    bool moving = false;
  };
  std::map<std::string, Travel> travels_;  // by state
};

}  // namespace octet::cuda
