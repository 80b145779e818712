#include "kernels/cuda/context.h"

#include "kernels/cuda/attention/cudnn.h"
#include "kernels/cuda/matmul/cublaslt.h"
#include "kernels/cuda/matmul/tuning.h"

namespace octet::cuda {
namespace {

constexpr int kMinimumMajor = 9;  // the kernels are compiled for sm_90a

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) [[likely]]
    return;
  fail(status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal, "CUDA: {}: {} ({})", what,
       cudaGetErrorName(status), cudaGetErrorString(status));
}

int device_count(std::string* why) {
  auto none = [&](std::string reason) {
    if (why != nullptr) *why = std::move(reason);
    return 0;
  };
  int count = 0, driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return none("no NVIDIA driver was found");
  if (driver < 1000 * (CUDART_VERSION / 1000)) {
    return none(fmt::format("the NVIDIA driver supports CUDA {}.{}, Octet needs {}.0: install a newer driver",
                            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000));
  }
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    return none(status == cudaSuccess ? "there is no CUDA device" : cudaGetErrorString(status));
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, device), "reading the properties of a device");
    if (properties.major != kMinimumMajor) {
      return none(fmt::format("device {} is {} with compute capability {}.{}; the kernels need 9.0 (H100, H200)",
                              device, properties.name, properties.major, properties.minor));
    }
  }
  return count;
}

DeviceContext::DeviceContext(ContextOptions options) : options_(std::move(options)) {
  std::string why;
  const int count = device_count(&why);
  check(count > 0, ErrorCode::kUnsupported, "no GPU can be used: {}; run with --device=cpu", why);
  check(options_.device < count, ErrorCode::kInvalidArgument, "device {} is wanted and there are {}", options_.device,
        count);
  check_cuda(cudaSetDevice(options_.device), "choosing the device");
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, options_.device), "reading the properties of the device");
  name_ = properties.name;
  sm_count_ = properties.multiProcessorCount;
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

DeviceContext::~DeviceContext() {
  cudnn_.reset();
  gemm_tuning_.reset();
  cublaslt_.reset();
  cudaFree(counters_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

uint32_t* DeviceContext::counters() {
  if (counters_ == nullptr) {
    constexpr size_t kBytes = kCounters * sizeof(uint32_t);
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, kBytes), "allocating counters");
    counters_ = static_cast<uint32_t*>(memory);
    check_cuda(cudaMemsetAsync(memory, 0, kBytes, stream_), "clearing counters");
  }
  return counters_;
}

CublasLt& DeviceContext::cublaslt() {
  if (!cublaslt_) cublaslt_ = std::make_unique<CublasLt>();
  return *cublaslt_;
}
GemmTuning& DeviceContext::gemm_tuning() {
  if (!gemm_tuning_) gemm_tuning_ = std::make_unique<GemmTuning>(*this);
  return *gemm_tuning_;
}
void DeviceContext::keep_choices() {
  if (gemm_tuning_) gemm_tuning_->save();
}
CudnnHandle& DeviceContext::cudnn() {
  if (!cudnn_) cudnn_ = std::make_unique<CudnnHandle>(*this);
  return *cudnn_;
}

}  // namespace octet::cuda
