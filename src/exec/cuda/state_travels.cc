#include "exec/cuda/state_travels.h"

namespace octet::cuda {

StateTravels::~StateTravels() {
  for (auto& [state, travel] : travels_) {
    for (cudaEvent_t event : {travel.begun, travel.ended})
      if (event != nullptr) cudaEventDestroy(event);
    if (travel.stream == nullptr) continue;
    cudaStreamSynchronize(travel.stream);
    cudaStreamDestroy(travel.stream);
  }
}

bool StateTravels::move(DeviceContext& context, const std::string& state, std::byte* data, int64_t bytes, int32_t other,
                        bool sends) {
  Travel& travel = travels_[state];
  if (travel.link == nullptr) {
    travel.link = context.ranks().link(other, sends, bytes);
    if (travel.link == nullptr) return false;
    check_cuda(cudaStreamCreateWithFlags(&travel.stream, cudaStreamNonBlocking), "making a stream");
    for (cudaEvent_t* event : {&travel.begun, &travel.ended})
      check_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event");
  }
  check_cuda(cudaEventRecord(travel.begun, context.stream()), "recording an event");
  check_cuda(cudaStreamWaitEvent(travel.stream, travel.begun, 0), "ordering two streams");
  if (sends) {
    travel.link->send(data, travel.stream);
  } else {
    travel.link->receive(data, travel.stream);
  }
  check_cuda(cudaEventRecord(travel.ended, travel.stream), "recording an event");
  travel.moving = true;
  return true;
}

void StateTravels::settle(const Graph& graph, cudaStream_t stream) {
  const auto settle = [&](const std::string& state) {
    const auto found = travels_.find(state);
    if (found == travels_.end() || !found->second.moving) return;
    check_cuda(cudaStreamWaitEvent(stream, found->second.ended, 0), "waiting for a state");
    found->second.moving = false;
  };
  if (travels_.empty()) return;
  for (const Node& node : graph.nodes())
    if (is_named_leaf(node.op)) settle(node.name);
  for (const NamedValue& update : graph.updates()) settle(update.name);
}

void StateTravels::wait(const HostWait& wait) const {
  for (const auto& [state, travel] : travels_)
    if (travel.moving) check_cuda(wait.event(travel.ended), "waiting for a state");
}

}  // namespace octet::cuda
