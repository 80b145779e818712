#include "kernels/cuda/context.h"

#include <cuda.h>
#include <glob.h>

#include <cstdlib>

namespace octet::cuda {
namespace {

constexpr int kMajor = 9, kMinor = 0;  // the kernels are compiled for sm_90a, which runs on nothing else

// Whether the process has a context on the device: cudaSetDevice makes one where there is none.
bool has_context(int device) {
  static const auto state_of = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000, cudaEnableDefault, &found);
    return reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(function);
  }();
  unsigned flags = 0;
  int active = 0;
  return state_of != nullptr && state_of(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

DeviceFacts read_facts(int index) {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, index), "reading the properties of a device");
  char bus_id[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index), "reading the bus id of a device");
  return {.name = properties.name,
          .major = properties.major,
          .minor = properties.minor,
          .index = index,
          .sm_count = properties.multiProcessorCount,
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .pci_bus_id = bus_id};
}

// None with the reason in `why`.
std::vector<DeviceFacts> usable_devices(std::string* why) {
  auto none = [&](std::string reason) -> std::vector<DeviceFacts> {
    if (why != nullptr) *why = std::move(reason);
    return {};
  };
  int count = 0, driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return none("no NVIDIA driver was found");
  if (driver < 1000 * (CUDART_VERSION / 1000)) {
    return none(fmt::format("the NVIDIA driver supports CUDA {}.{}, Octet needs {}.0: install a newer driver",
                            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000));
  }
  // Streams that wait for other ranks must not share a hardware queue with those that do what these wait for. Read
  // once, by the first call; what the environment says wins.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*replace=*/0);
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    return none(status == cudaSuccess ? "there is no CUDA device" : cudaGetErrorString(status));
  }
  std::vector<DeviceFacts> devices, usable;
  for (int index = 0; index < count; ++index) devices.push_back(read_facts(index));
  for (const int place : devices_with_kernels(devices, why)) usable.push_back(devices[static_cast<size_t>(place)]);
  return usable;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) noexcept : device_(device) {
  cudaGetDevice(&before_);
  cudaSetDevice(device);
}

DeviceGuard::~DeviceGuard() {
  if (before_ != device_ && has_context(before_)) cudaSetDevice(before_);
}

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

int device_count(std::string* why) { return static_cast<int>(usable_devices(why).size()); }

DeviceFacts device_facts(int device) {
  std::string why;
  const std::vector<DeviceFacts> usable = usable_devices(&why);
  check(!usable.empty(), ErrorCode::kUnsupported, "no GPU can be used: {}; run with --device=cpu", why);
  check(device >= 0 && device < std::ssize(usable), ErrorCode::kInvalidArgument,
        "device {} is wanted and {} can be used", device, usable.size());
  return usable[static_cast<size_t>(device)];
}

void* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  check(found != nullptr, ErrorCode::kUnsupported, "the CUDA driver has no {}: it wants 12.0", name);
  return found;
}

DeviceContext::DeviceContext(ContextOptions options)
    : options_(std::move(options)), facts_(device_facts(options_.device)) {
  const DeviceGuard guard(device());
  check_cuda(cudaSetDevice(device()), "choosing the device");
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
  for (size_t i = 0; i < kStreams; ++i) {  // what collectives launch goes before blocks of kernels that wait for room
    const int priority = static_cast<StreamRole>(i) == StreamRole::kRanks ? greatest : least;
    check_cuda(cudaStreamCreateWithPriority(&streams_[i], cudaStreamNonBlocking, priority), "making a stream");
  }
  for (cudaEvent_t& event : reached_)
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
}

DeviceContext::DeviceContext(DeviceFacts facts) : facts_(std::move(facts)) {}

DeviceContext& facts_alone() {
  static DeviceContext context(h200_facts());
  return context;
}

DeviceContext::~DeviceContext() {
  if (!has_device()) return;
  const DeviceGuard guard(device());
  while (!libraries_.empty()) libraries_.pop_back();
  cudaFree(counters_);
  for (cudaEvent_t event : reached_) cudaEventDestroy(event);
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

void DeviceContext::order(StreamRole before, StreamRole after) {
  cudaEvent_t event = reached_[static_cast<size_t>(before)];
  check_cuda(cudaEventRecord(event, stream(before)), "recording an event");
  check_cuda(cudaStreamWaitEvent(stream(after), event, 0), "ordering two streams");
}

DeviceRanks& DeviceContext::ranks() const {
  check(options_.ranks != nullptr, ErrorCode::kInvalidArgument,
        "a graph with collectives needs the ranks of a mesh: give CudaOptions::ranks");
  return *options_.ranks;
}

uint32_t* DeviceContext::counters() {
  if (counters_ == nullptr && has_device()) {
    constexpr size_t kBytes = kCounters * sizeof(uint32_t);
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, kBytes), "allocating counters");
    counters_ = static_cast<uint32_t*>(memory);
    check_cuda(cudaMemsetAsync(memory, 0, kBytes, stream()), "clearing counters");
  }
  return counters_;
}

void DeviceContext::save_libraries() {
  for (const auto& [type, library] : libraries_) library->save();
}

std::vector<std::string> python_libraries(const std::string& package, const std::string& file) {
  std::vector<std::string> roots;
  if (const char* environment = std::getenv("VIRTUAL_ENV")) roots.emplace_back(environment);
  if (const char* home = std::getenv("HOME")) roots.push_back(std::string(home) + "/.local");
  for (const char* root : {"/opt/*/.venv", "/opt/*", "/usr/local", "/usr"}) roots.emplace_back(root);
  std::vector<std::string> paths;
  for (const std::string& root : roots) {
    glob_t found{};
    const std::string pattern = root + "/lib/python3*/*-packages/nvidia/" + package + "/lib/" + file;
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
      paths.insert(paths.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
  }
  return paths;
}

}  // namespace octet::cuda
