// cuDNN, opened at run time.
#pragma once

namespace octet::cuda {

class DeviceContext;

class CudnnHandle {
 public:
  explicit CudnnHandle(DeviceContext&) {}
};

}  // namespace octet::cuda
