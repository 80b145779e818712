// Energy the first GPU used, through NVML (libnvidia-ml.so.1, opened at run time).
#pragma once

namespace octet {

class EnergyMeter {
 public:
  EnergyMeter() : start_(millijoules()) {}
  double joules() const;  // since construction; negative where the driver does not say

 private:
  static double millijoules();  // of the GPU since the driver was loaded; negative: not known
  double start_;
};

}  // namespace octet
