#include "kernels/cuda/context.h"

#include "kernels/cuda/attention/cudnn.h"
#include "kernels/cuda/matmul/cublaslt.h"
#include "kernels/cuda/matmul/tuning.h"

namespace octet::cuda {
namespace {

constexpr int kMajor = 9, kMinor = 0;  // the kernels are compiled for sm_90a, which runs on nothing else

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) [[likely]]
    return;
  fail(status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal, "CUDA: {}: {} ({})", what,
       cudaGetErrorName(status), cudaGetErrorString(status));
}

std::vector<int> devices_with_kernels(std::span<const DeviceFacts> devices, std::string* why) {
  std::vector<int> usable;
  std::string others;
  for (size_t i = 0; i < devices.size(); ++i) {
    const DeviceFacts& device = devices[i];
    if (device.major == kMajor && device.minor == kMinor) usable.push_back(static_cast<int>(i));
    others +=
        fmt::format("{}device {} is {} with {}.{}", i > 0 ? ", " : "", i, device.name, device.major, device.minor);
  }
  if (usable.empty() && why != nullptr)
    *why = fmt::format("the kernels need compute capability {}.{} (H100, H200); {}", kMajor, kMinor, others);
  return usable;
}

namespace {

// CUDA's indices; none with the reason in `why`.
std::vector<int> usable_devices(std::string* why) {
  auto none = [&](std::string reason) -> std::vector<int> {
    if (why != nullptr) *why = std::move(reason);
    return {};
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
  std::vector<DeviceFacts> devices;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, device), "reading the properties of a device");
    devices.push_back({properties.name, properties.major, properties.minor});
  }
  return devices_with_kernels(devices, why);
}

}  // namespace

int device_count(std::string* why) { return static_cast<int>(usable_devices(why).size()); }

DeviceContext::DeviceContext(ContextOptions options) : options_(std::move(options)) {
  std::string why;
  const std::vector<int> usable = usable_devices(&why);
  check(!usable.empty(), ErrorCode::kUnsupported, "no GPU can be used: {}; run with --device=cpu", why);
  check(options_.device >= 0 && options_.device < std::ssize(usable), ErrorCode::kInvalidArgument,
        "device {} is wanted and {} can be used", options_.device, usable.size());
  device_ = usable[static_cast<size_t>(options_.device)];
  check_cuda(cudaSetDevice(device_), "choosing the device");
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, device_), "reading the properties of the device");
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
