// What kernels may know of the device they are bound on: properties, library handles, options. One per executor.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace octet::cuda {

class CublasLt;     // matmul/cublaslt.h: opened at run time
class GemmTuning;   // matmul/tuning.h: algorithm choices by shape, kept in a file
class CudnnHandle;  // attention/cudnn.h: opened at run time

// Throws kInternal with CUDA's name and text of the error; `what` says what was being done.
void check_cuda(cudaError_t status, const char* what);

struct ContextOptions {
  int device = 0;                   // which of the usable ones
  bool deterministic = false;       // the same bits every run: no atomics on floats, no timing-dependent choices
  bool tune_gemms = true;           // time candidate algorithms of new shapes when binding
  std::string gemm_cache = "auto";  // file of algorithm choices; "auto": octet/ in the user's cache folder, "": none
};

class DeviceContext {
 public:
  explicit DeviceContext(ContextOptions options);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;

  const ContextOptions& options() const { return options_; }
  int device() const { return device_; }  // CUDA's index
  int sm_count() const { return sm_count_; }
  const std::string& device_name() const { return name_; }
  cudaStream_t stream() const { return stream_; }  // the stream everything runs on
  // kCounters words of device memory that are 0 between kernels: what counts in them leaves them at 0. Cleared when
  // they are allocated, by the first call.
  static constexpr int kCounters = 1 << 14;
  uint32_t* counters();

  // Opened on first use; throw kUnsupported naming the library, where it was looked for, the version found and wanted.
  CublasLt& cublaslt();
  GemmTuning& gemm_tuning();
  void keep_choices();  // what gemm_tuning() has measured, for later runs: when a program is bound
  CudnnHandle& cudnn();

 private:
  ContextOptions options_;
  int device_ = 0, sm_count_ = 0;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  uint32_t* counters_ = nullptr;
  std::unique_ptr<CublasLt> cublaslt_;
  std::unique_ptr<GemmTuning> gemm_tuning_;
  std::unique_ptr<CudnnHandle> cudnn_;
};

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
};
// Indices of those that the kernels are compiled for; where there are none, `why` says what each is.
std::vector<int> devices_with_kernels(std::span<const DeviceFacts> devices, std::string* why = nullptr);

// How many usable devices there are; 0 with the reason in `why` (no driver, no device, none that the kernels run on).
int device_count(std::string* why = nullptr);

}  // namespace octet::cuda
