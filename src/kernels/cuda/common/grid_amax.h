// Where a kernel leaves the amax of what its grid makes (common/arrivals.cuh), as launchers take it.
#pragma once

#include <cstdint>

namespace octet::cuda {

inline constexpr int kAmaxWords = 2;
struct GridAmax {
  float* to = nullptr;        // [1], null: not wanted
  uint32_t* words = nullptr;  // [kAmaxWords] of DeviceContext::counters: the largest bits so far, arrivals
};

}  // namespace octet::cuda
