// Which device runs: the words of --device and what they come to.
#include "base/error.h"
#include "exec/cpu/memory.h"
#include "exec/executor.h"

namespace octet {

Device resolve_device(const std::string& name) {
  std::string why;
  if (name == "cpu") return Device::kCpu;
  if (name == "auto") return cuda_available() ? Device::kCuda : Device::kCpu;
  check(name == "cuda", ErrorCode::kInvalidArgument, "device '{}' is not known: use auto, cpu or cuda", name);
  check(cuda_available(&why), ErrorCode::kUnsupported, "device cuda: {}; use --device=cpu, or auto", why);
  return Device::kCuda;
}

Target target_of(Device device, const CudaOptions& options) {
  return device == Device::kCuda ? cuda_target(options) : cpu_target();
}

int64_t free_memory(Device device, const CudaOptions& options) {
  return device == Device::kCuda ? free_cuda_memory(options) : cpu::available_memory_bytes();
}

std::unique_ptr<Executor> make_executor(Plan plan, const CudaOptions& options, Communicator* ranks) {
  return plan.target.device == Device::kCuda ? make_cuda_executor(std::move(plan), options, ranks)
                                             : make_cpu_executor(std::move(plan), ranks);
}

}  // namespace octet
