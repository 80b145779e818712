// Algorithm choices of matrix products by shape: heuristics, timed once, kept in a file.
#pragma once

namespace octet::cuda {

class DeviceContext;

class GemmTuning {
 public:
  explicit GemmTuning(DeviceContext&) {}
};

}  // namespace octet::cuda
