#include "load/energy.h"

#include <dlfcn.h>

namespace octet {

// The NVML functions used, declared here because nvml.h is part of the CUDA toolkit.
EnergyMeter::EnergyMeter(const std::string& pci_bus_id) {
  void* library = pci_bus_id.empty() ? nullptr : dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto handle_of =
      reinterpret_cast<int (*)(const char*, void**)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  total_energy_ = reinterpret_cast<decltype(total_energy_)>(dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
  const bool complete = init != nullptr && handle_of != nullptr && total_energy_ != nullptr;
  if (!complete || init() != 0 || handle_of(pci_bus_id.c_str(), &device_) != 0) device_ = nullptr;
  start_ = millijoules();
}

double EnergyMeter::millijoules() const {
  unsigned long long energy = 0;
  if (device_ == nullptr || total_energy_(device_, &energy) != 0) return -1;
  return static_cast<double>(energy);
}

double EnergyMeter::joules() const {
  const double end = millijoules();
  return start_ < 0 || end < 0 ? -1 : (end - start_) / 1000;
}

}  // namespace octet
