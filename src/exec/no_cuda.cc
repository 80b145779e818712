// What a build without CUDA says when it is asked for a GPU.
#include "base/error.h"
#include "exec/executor.h"
#include "exec/rank_devices.h"
#include "exec/timeline.h"

namespace octet {

bool cuda_available(std::string* why) {
  if (why != nullptr) *why = "this program was built without CUDA (-DOCTET_CUDA=ON builds with it)";
  return false;
}

int cuda_device_count(std::string* why) {
  cuda_available(why);
  return 0;
}

namespace {

[[noreturn]] void fail_without_cuda() {
  std::string why;
  cuda_available(&why);
  fail(ErrorCode::kUnsupported, "no GPU can be used: {}", why);
}

}  // namespace

// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature is that of the CUDA executor, which keeps the plan
std::unique_ptr<Executor> make_cuda_executor(Plan, const CudaOptions&, Communicator*) { fail_without_cuda(); }
Target cuda_target(const CudaOptions&) { fail_without_cuda(); }
int64_t free_cuda_memory(const CudaOptions&) { fail_without_cuda(); }
std::string cuda_bus_id(const CudaOptions&) { fail_without_cuda(); }
std::unique_ptr<DeviceTimeline> make_device_timeline(int) { fail_without_cuda(); }
void make_group(cuda::DeviceRanks&, const AxisList&) { fail_without_cuda(); }

RankDevices rank_devices(Device device, bool) {
  if (device == Device::kCuda) fail_without_cuda();
  return {};
}

}  // namespace octet
