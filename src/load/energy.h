// Energy a GPU used, through NVML (libnvidia-ml.so.1, opened at run time).
#pragma once

#include <string>

namespace octet {

class EnergyMeter {
 public:
  explicit EnergyMeter(const std::string& pci_bus_id);  // "": of none
  double joules() const;                                // since construction; negative where the driver does not say

 private:
  double millijoules() const;  // of the GPU since the driver was loaded; negative: not known

  int (*total_energy_)(void* device, unsigned long long* millijoules) = nullptr;
  void* device_ = nullptr;
  double start_ = -1;
};

}  // namespace octet
