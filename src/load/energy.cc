#include "load/energy.h"

#include <dlfcn.h>

namespace octet {
namespace {

// The three functions of NVML that are needed; declared here because its header belongs to the CUDA toolkit.
struct Nvml {
  int (*init)() = nullptr;
  int (*handle_by_index)(unsigned index, void** device) = nullptr;
  int (*total_energy)(void* device, unsigned long long* millijoules) = nullptr;
  void* device = nullptr;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    init = reinterpret_cast<decltype(init)>(dlsym(library, "nvmlInit_v2"));
    handle_by_index = reinterpret_cast<decltype(handle_by_index)>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
    total_energy = reinterpret_cast<decltype(total_energy)>(dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
    const bool complete = init != nullptr && handle_by_index != nullptr && total_energy != nullptr;
    if (!complete || init() != 0 || handle_by_index(0, &device) != 0) device = nullptr;
  }
};

}  // namespace

double EnergyMeter::millijoules() {
  static const Nvml nvml;
  unsigned long long energy = 0;
  if (nvml.device == nullptr || nvml.total_energy(nvml.device, &energy) != 0) return -1;
  return static_cast<double>(energy);
}

double EnergyMeter::joules() const {
  const double end = millijoules();
  return start_ < 0 || end < 0 ? -1 : (end - start_) / 1000;
}

}  // namespace octet
