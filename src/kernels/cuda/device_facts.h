// What is known of a device without a context on it: what the choice of a kernel may depend on besides shapes.
#pragma once

#include <cstdint>
#include <string>

namespace octet::cuda {

// Of Hopper, the one architecture the kernels are compiled for (CUDA C++ Programming Guide, compute capability 9.0).
inline constexpr int64_t kSharedBytesPerSm = 228 << 10, kSharedBytesPerBlock = 227 << 10;
inline constexpr int kThreadsPerSm = 2048, kThreadsPerBlock = 1024;

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int index = 0;             // CUDA's
  int sm_count = 0;
  int64_t memory_bytes = 0;
  std::string pci_bus_id = "";  // what NVML knows it by
};

// Of an H200, where there is no device.
inline DeviceFacts h200_facts() { return {.name = "NVIDIA H200", .major = 9, .sm_count = 132}; }

}  // namespace octet::cuda
