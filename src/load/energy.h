// Energy consumed by a GPU, read through NVML (libnvidia-ml.so.1, loaded at run time).
#pragma once

#include <string>

namespace octet {

class EnergyMeter {
 public:
  explicit EnergyMeter(const std::string& pci_bus_id);  // "": no GPU
  double joules() const;                                // since construction; negative: not supported

 private:
  double millijoules() const;  // since the driver was loaded; negative: not known

  int (*total_energy_)(void* device, unsigned long long* millijoules) = nullptr;
  void* device_ = nullptr;
  double start_ = -1;
};

}  // namespace octet
